package cluster

import (
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/protobuf/proto"

	"github.com/gendurable/gendurable/messages"
)

// TestParts: a batch is split by its bytes, in order, and nothing of it is lost.
func TestParts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ sizes, want []int }{
		{nil, []int{0}},
		{[]int{100}, []int{1}},
		{[]int{3, 3, 4}, []int{3}},
		{[]int{3, 3, 5, 1, 100, 1, 1}, []int{2, 2, 1, 2}},
		{[]int{100, 100}, []int{1, 1}},
	} {
		b := &remote.MessageBatch{TypeNames: []string{"t"}, Targets: []*actor.PID{{Id: "a"}}, Senders: []*actor.PID{{Id: "b"}}}
		for i, size := range test.sizes {
			b.Envelopes = append(b.Envelopes, &remote.MessageEnvelope{TypeId: int32(i), MessageData: make([]byte, size)})
		}
		got := parts(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_MessageBatch{MessageBatch: b}}, 10)
		if len(got) != len(test.want) {
			t.Fatalf("%v: %d parts", test.sizes, len(got))
		}
		next := int32(0)
		for i, m := range got {
			p := m.GetMessageBatch()
			if len(p.Envelopes) != test.want[i] || len(p.TypeNames) != 1 || len(p.Targets) != 1 || len(p.Senders) != 1 {
				t.Errorf("%v: part %d is %v", test.sizes, i, p)
			}
			for _, e := range p.Envelopes {
				if e.TypeId != next {
					t.Errorf("%v: message %d came as %d", test.sizes, e.TypeId, next)
				}
				next++
			}
		}
	}
	greeting := &remote.RemoteMessage{MessageType: &remote.RemoteMessage_ConnectRequest{}}
	if got := parts(greeting, 10); len(got) != 1 || got[0] != greeting {
		t.Errorf("what is no batch became %v", got)
	}
}

// TestElements: the largest requests of a client are within the bounds, and counting stops above its own.
func TestElements(t *testing.T) {
	t.Parallel()
	many := &messages.InsertMany{Id: "x"}
	for range maxMany {
		many.Inserts = append(many.Inserts, &messages.Insert{Machine: "m", Options: &messages.InsertOptions{
			CorrelationScope: &messages.CorrelationScope{Statuses: []string{"runnable", "executing", "awaiting_signal", "awaiting_children", "done", "failed"}}}})
	}
	data, err := proto.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	of := many.ProtoReflect().Descriptor()
	if n := elements(data, of, maxElements); n != 9*maxMany {
		t.Errorf("counted %d", n)
	}
	if n := elements(data, of, 100); n <= 100 || n > 110 {
		t.Errorf("counted %d, above 100", n)
	}
	if n := elements([]byte{0xff}, of, 100); n != 0 {
		t.Errorf("counted %d in garbage", n)
	}
}
