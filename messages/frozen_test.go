package messages

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"
)

// freeze adds what is new to testdata. It never changes what is there: that is what old nodes send.
var freeze = flag.Bool("freeze", false, "add new messages and fields to testdata")

// samples are one of each message with every field of level 1 set. Their encodings are in testdata/v1: they stay as they
// are, and new fields get new samples.
func samples() map[string]proto.Message {
	byKey := &Target{Address: &Target_Key{Key: "order:42"}}
	byID := &Target{Address: &Target_Id{Id: 42}}
	insert := &Insert{
		Id: "req-1", Machine: "checkout", Version: 3, State: []byte(`{"id":42}`), Level: 1,
		Options: &InsertOptions{
			Queue: proto.String("orders"), Priority: proto.Int32(-7), ConcurrencyKey: proto.String("shop:9"),
			CorrelationKey: proto.String("order:42"), CorrelationScope: &CorrelationScope{Statuses: []string{"runnable", "done"}},
			Eligible: &InsertOptions_AtMicros{AtMicros: 1_700_000_000_000_001}, RateLimit: proto.String("mail:eu"), Weight: 2.5,
		},
	}
	later := &Insert{Id: "req-2", Machine: "greet", Options: &InsertOptions{Eligible: &InsertOptions_InMicros{InMicros: 90_000_000}}}
	signal := &Signal{Id: "req-3", To: byKey, Name: "payment", Payload: []byte(`{"amount":100}`), DedupKey: "evt-7", Level: 1}
	return map[string]proto.Message{
		"insert":       insert,
		"insert_later": later,
		"inserted":     &Inserted{RequestId: "req-1", Id: 42, Repeated: true},
		"insert_many":  &InsertMany{Id: "req-4", Inserts: []*Insert{insert, later}, Level: 1},
		"inserted_many": &InsertedMany{RequestId: "req-4", Results: []*InsertedMany_Result{
			{Id: 42, Duplicate: true}, {Id: 43, Repeated: true}}},
		"signal":        signal,
		"signaled":      &Signaled{RequestId: "req-3", Target: 42, Duplicate: true},
		"signal_many":   &SignalMany{Id: "req-5", Signals: []*Signal{signal, {To: byID, Name: "stop"}}, Level: 1},
		"signaled_many": &SignaledMany{RequestId: "req-5", Results: []*SignaledMany_Result{{Target: 42, Duplicate: true}, {}}},
		"cancel":        &Cancel{Id: "req-6", Target: byID, Reason: "changed my mind", Level: 1},
		"cancelled":     &Cancelled{RequestId: "req-6", Result: Cancelled_REQUESTED},
		"await":         &Await{Id: "req-7", Target: byKey, UntilTerminal: true, TimeoutMicros: 15_000_000, Level: 1},
		"settled": &Settled{RequestId: "req-7", Id: 42, Status: "done", Result: []byte(`"ok"`), Error: "none",
			Awaits: []string{"payment", "stop"}},
		"get": &Get{Id: "req-8", Target: byID, Level: 1},
		"got": &Got{RequestId: "req-8", Id: 42, Machine: "checkout", Version: 3, Step: "ship", Status: "awaiting_signal",
			State: []byte(`{"id":42}`), Result: []byte(`1`), LastError: "it rained", Queue: "orders", Priority: -7, Attempt: 2,
			Crashes: 1, Awaits: []string{"payment"}, AwaitDeadline: 5, EligibleAt: 6, ConcurrencyKey: "shop:9", RateLimit: "mail:eu",
			Weight: 2.5, CorrelationKey: "order:42", ParentId: 41, ChildrenPending: 3, LockedBy: "w", LeaseExpiresAt: 7,
			CancelRequested: true, CancelReason: "no", InsertedAt: 8, UpdatedAt: 9},
		"poke":   &Poke{Queues: []string{"orders", "mail"}, InMicros: 1500},
		"notice": &Notice{Queue: "orders", Paused: true, Cancels: []*Notice_Cancel{{Instance: 42, Claim: 3}, {Instance: 43, Claim: 1}}},
		"hello":  &Hello{Id: "req-9"},
		"node_info": &NodeInfo{RequestId: "req-9", Level: 1, Engine: "gendurable", Node: "web-1", Incarnation: "5f3a",
			Queues: []string{"orders"}, Machines: []string{"checkout/3"}},
		"refused": &Refused{RequestId: "req-1", Reason: Refused_DUPLICATE, Text: "occupied", Instance: 42, Key: "order:42"},
	}
}

// TestYesterdaysMessagesAreReadable decodes what nodes of earlier versions send, and what this one's would be read as by them.
func TestYesterdaysMessagesAreReadable(t *testing.T) {
	t.Parallel()
	for name, want := range samples() {
		file := filepath.Join("testdata", "v1", name+".bin")
		old, err := os.ReadFile(file)
		if os.IsNotExist(err) && *freeze {
			if old, err = proto.Marshal(want); err == nil {
				err = os.WriteFile(file, old, 0o644)
			}
		}
		if err != nil {
			t.Fatalf("%v (a new message: go test ./messages -freeze)", err)
		}
		got := want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(old, got); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !proto.Equal(got, want) {
			t.Errorf("%s: yesterday's bytes now say\n%v\nwant\n%v", name, got, want)
		}
	}
	files, _ := filepath.Glob(filepath.Join("testdata", "v1", "*.bin"))
	if len(files) != len(samples()) {
		t.Errorf("testdata/v1 has %d files for %d samples: none may be taken away", len(files), len(samples()))
	}
}

// TestTomorrowsMessagesAreReadable adds fields that this version does not know to every message, of every wire type. 100
// cases, about 0.2 s on a quiet machine.
func TestTomorrowsMessagesAreReadable(t *testing.T) {
	t.Parallel()
	all := slices.SortedFunc(func(yield func(proto.Message) bool) {
		for _, m := range samples() {
			if !yield(m) {
				return
			}
		}
	}, func(a, b proto.Message) int { return strings.Compare(string(NameOf(a)), string(NameOf(b))) })
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SampledFrom(all).Draw(t, "message")
		b, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 5).Draw(t, "fields") {
			n := protowire.Number(rapid.IntRange(1000, 1<<20).Draw(t, "number"))
			b = protowire.AppendTag(b, n, protowire.BytesType)
			b = protowire.AppendBytes(b, rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
			b = protowire.AppendTag(b, n+1, protowire.VarintType)
			b = protowire.AppendVarint(b, rapid.Uint64().Draw(t, "varint"))
		}
		got := want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(b, got); err != nil {
			t.Fatal(err)
		}
		got.ProtoReflect().SetUnknown(nil)
		if !proto.Equal(got, want) {
			t.Fatalf("read as %v, want %v", got, want)
		}
	})
	// A value of an enum that is newer than the reader arrives as the number.
	b, _ := proto.Marshal(&Refused{Reason: 99, Text: "news"})
	var r Refused
	if err := proto.Unmarshal(b, &r); err != nil || r.Reason != 99 || r.Text != "news" {
		t.Errorf("read %v, %v", &r, err)
	}
}

// TestProtocolIsFrozen holds the descriptors against what was published: lines may come, none may go.
func TestProtocolIsFrozen(t *testing.T) {
	t.Parallel()
	now := describe(File_gendurable_proto)
	const file = "testdata/frozen.txt"
	text, err := os.ReadFile(file)
	if err != nil && !*freeze {
		t.Fatal(err)
	}
	var frozen []string
	for line := range strings.Lines(string(text)) {
		frozen = append(frozen, strings.TrimSpace(line))
	}
	for _, line := range frozen {
		if !slices.Contains(now, line) {
			t.Errorf("published, and now removed or changed: %s", line)
		}
	}
	fresh := slices.DeleteFunc(slices.Clone(now), func(line string) bool { return slices.Contains(frozen, line) })
	switch {
	case len(fresh) == 0 || t.Failed():
	case *freeze:
		if err := os.WriteFile(file, []byte(strings.Join(append(frozen, fresh...), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("new in the protocol; go test ./messages -freeze publishes it:\n%s", strings.Join(fresh, "\n"))
	}
}

// describe is one line for each field and each value of an enum.
func describe(file protoreflect.FileDescriptor) []string {
	var lines []string
	var message func(m protoreflect.MessageDescriptor)
	enum := func(e protoreflect.EnumDescriptor) {
		for i := range e.Values().Len() {
			v := e.Values().Get(i)
			lines = append(lines, fmt.Sprintf("enum %s %d %s", e.FullName(), v.Number(), v.Name()))
		}
	}
	message = func(m protoreflect.MessageDescriptor) {
		lines = append(lines, fmt.Sprintf("message %s", m.FullName()))
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			kind := f.Kind().String()
			if f.Message() != nil {
				kind = string(f.Message().FullName())
			} else if f.Enum() != nil {
				kind = string(f.Enum().FullName())
			}
			lines = append(lines, fmt.Sprintf("field %s %d %s %s %s", m.FullName(), f.Number(), f.Cardinality(), kind, f.Name()))
		}
		for i := range m.Messages().Len() {
			message(m.Messages().Get(i))
		}
		for i := range m.Enums().Len() {
			enum(m.Enums().Get(i))
		}
	}
	for i := range file.Messages().Len() {
		message(file.Messages().Get(i))
	}
	for i := range file.Enums().Len() {
		enum(file.Enums().Get(i))
	}
	return lines
}

// TestListsAreComplete: every message of the file that has an id is a request, and every one with a request_id a reply.
func TestListsAreComplete(t *testing.T) {
	t.Parallel()
	listed := make(map[protoreflect.FullName]bool)
	for _, r := range Requests() {
		listed[NameOf(r)] = true
	}
	for _, r := range Replies() {
		listed[NameOf(r)] = true
	}
	all := File_gendurable_proto.Messages()
	for i := range all.Len() {
		m := all.Get(i)
		id := m.Fields().ByName("id")
		request := id != nil && id.Kind() == protoreflect.StringKind
		reply := m.Fields().ByName("request_id") != nil
		if (request || reply) != listed[m.FullName()] {
			t.Errorf("%s: a request %v, a reply %v, listed %v", m.FullName(), request, reply, listed[m.FullName()])
		}
	}
}
