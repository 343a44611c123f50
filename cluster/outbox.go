package cluster

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/protobuf/proto"

	"github.com/gendurable/gendurable/messages"
)

const (
	// maxWaiting bounds the bytes of replies that wait for one peer. It is also what they can have in one batch, as what is
	// packed together has waited together; see maxMessage.
	maxWaiting = maxMessage
	// maxOutbox bounds those that wait for all peers, and are being sent to them.
	maxOutbox = 512 << 20
	// littleWaiting of a peer is taken however much waits for others, so that they cannot keep the answers from it.
	littleWaiting = 64 << 10
	// collectEvery is how often the garbage collector is asked to look for what was thrown away, when there is no room.
	collectEvery = 10 * time.Second
	// waitingOverhead is about what a reply takes besides its content.
	waitingOverhead = 1 << 10
)

// Outbox bounds the replies that wait in the actor library until their peer reads them. The library takes whatever it is given,
// and a peer that asks and does not read would fill the memory until its stream is ended for it, half a minute later. What is
// beyond the bound is dropped, like any message that is lost: who wants it asks again.
//
// A reply counts from when it is handed to the library until that has taken it out of its queue, or has thrown it away: of
// the latter nobody is told, so the garbage collector says it. While it is being sent, it counts as part of its batch.
//
// Its methods are safe for concurrent use.
type Outbox struct {
	perPeer, total int64

	mu sync.Mutex
	// waiting are the bytes that wait, by the peer's address. Invariant: no entry is 0.
	waiting map[string]int64
	// held are the bytes of all that wait or are being sent.
	held int64
	// collected is when the garbage collector was asked.
	collected time.Time
}

func newOutbox(perPeer, total int64) *Outbox {
	return &Outbox{perPeer: perPeer, total: total, waiting: make(map[string]int64)}
}

// Reply returns what to send to a process of another node instead of the reply, and false when as much as there may be
// waits for its node, or for all: then nothing is to be sent.
func (o *Outbox) Reply(to *actor.PID, reply messages.Reply) (message any, ok bool) {
	p := &place{outbox: o, peer: to.GetAddress(), size: int64(proto.Size(reply)) + waitingOverhead}
	o.mu.Lock()
	defer o.mu.Unlock()
	if waits := o.waiting[p.peer] + p.size; waits > o.perPeer || o.held+p.size > o.total && waits > littleWaiting {
		o.collect()
		return nil, false
	}
	o.waiting[p.peer] += p.size
	o.held += p.size
	w := &waitingReply{reply: reply, place: p}
	runtime.AddCleanup(w, (*place).leave, p)
	return w, true
}

// collect finds what was thrown away. An idle process would not look for minutes, and a peer that came back would not be answered
// meanwhile.
func (o *Outbox) collect() {
	if now := time.Now(); now.Sub(o.collected) >= collectEvery {
		o.collected = now
		go runtime.GC()
	}
}

// sending counts what is being sent. What it returns is called when it has been.
func (o *Outbox) sending(batch *remote.RemoteMessage) (sent func()) {
	var size int64
	for _, e := range batch.GetMessageBatch().GetEnvelopes() {
		size += int64(len(e.GetMessageData()))
	}
	o.add(size)
	return func() { o.add(-size) }
}

func (o *Outbox) add(size int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held += size
}

// place is what a reply takes of the outbox. It must not lead to the reply, which is garbage first.
type place struct {
	outbox *Outbox
	peer   string
	size   int64
	left   atomic.Bool
}

// leave gives the place back, once.
func (p *place) leave() {
	if p.left.Swap(true) {
		return
	}
	o := p.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held -= p.size
	if o.waiting[p.peer] -= p.size; o.waiting[p.peer] == 0 {
		delete(o.waiting, p.peer)
	}
}

// waitingReply is a reply in the library's queue.
type waitingReply struct {
	reply messages.Reply
	place *place
}

// Serialize implements the library's RootSerializable: it is called when the reply is taken out of the queue.
func (w *waitingReply) Serialize() (remote.RootSerialized, error) {
	w.place.leave()
	return replyOnWire{w.reply}, nil
}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*waitingReply) IgnoreDeadLetterLogging() {}

// replyOnWire is encoded as the reply itself, and read as such.
type replyOnWire struct{ proto.Message }

// Deserialize implements the library's RootSerialized. It is for the reading side, where there is no replyOnWire.
func (replyOnWire) Deserialize() (remote.RootSerializable, error) { return nil, nil }
