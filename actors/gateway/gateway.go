// Package gateway answers requests from other actors, those of other processes too: insert, signal, cancel, await and read
// instances, as the messages of package messages.
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/messages"
)

// The defaults of Config.
const (
	DefaultInFlight = 256
	DefaultAwaiting = 10_000
	DefaultTimeout  = 30 * time.Second
)

// Config describes the gateway. Logger, Answer and Poke are required.
type Config struct {
	Logger   *slog.Logger
	Counters *actors.Counters
	// Answer carries out a request and says what came of it. It is called on goroutines, many at once, and must end soon after
	// its context.
	Answer func(ctx context.Context, request messages.Request) messages.Reply
	// Poke passes on that queues have work. It must not block.
	Poke func(queues []string, in time.Duration)
	// Outgoing says what is sent to a process of another node instead of the reply, and false when nothing is: too much waits for that
	// node already. It is called on goroutines. nil = the reply itself.
	Outgoing func(to *actor.PID, reply messages.Reply) (message any, ok bool)
	// InFlight bounds the requests in hand, Awaiting those that only wait, Await. More are refused as BUSY. Default 256 and
	// 10,000.
	InFlight, Awaiting int
	// Timeout bounds a request, and the wait of an Await. Default 30 s.
	Timeout time.Duration
}

// Props makes the Props of the gateway. It takes requests of package messages and answers each whose sender is known, and
// messages.Poke.
func Props(c Config) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	if c.InFlight <= 0 {
		c.InFlight = DefaultInFlight
	}
	if c.Awaiting <= 0 {
		c.Awaiting = DefaultAwaiting
	}
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	// What outlives a restart of the actor: its requests do.
	h := &hands{Config: c, work: make(chan struct{}, c.InFlight), waits: make(chan struct{}, c.Awaiting)}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor { return &gateway{h} })
}

// hands carry out requests.
type hands struct {
	Config
	// work and waits hold one entry for each request in hand.
	work, waits chan struct{}
	// ctx ends when the actor stops for good.
	ctx  context.Context
	stop context.CancelFunc
}

type gateway struct{ *hands }

func (g *gateway) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case messages.Request:
		g.request(ctx.ActorSystem().Root, ctx.Sender(), m)
	case *messages.Poke:
		g.Poke(m.GetQueues(), max(0, time.Duration(m.GetInMicros())*time.Microsecond))
	case *actor.Stopping:
		g.stop()
	}
}

// request gives a request to a goroutine, or refuses it.
func (h *hands) request(root *actor.RootContext, from *actor.PID, m messages.Request) {
	h.Counters.GatewayRequests.Add(1)
	slots := h.work
	if _, waits := m.(*messages.Await); waits {
		slots = h.waits
	}
	refusal := Check(m)
	if refusal == nil {
		select {
		case slots <- struct{}{}:
		default:
			h.Counters.GatewayBusy.Add(1)
			refusal = &messages.Refused{RequestId: m.GetId(), Reason: messages.Refused_BUSY,
				Text: "gendurable: this gateway has as many requests in hand as it takes; ask again later"}
		}
	}
	if refusal != nil {
		// Not from here: to send to another node may take a while, and this actor has others to serve.
		go h.reply(root, from, refusal)
		return
	}
	h.Counters.GatewayInHandNow.Add(1)
	go func() {
		defer func() {
			h.Counters.GatewayInHandNow.Add(-1)
			<-slots
		}()
		h.reply(root, from, h.answer(m))
	}()
}

// answer carries out a request. A panic is an answer, too: the caller may try another node, and the stack is in the log.
func (h *hands) answer(m messages.Request) (reply messages.Reply) {
	ctx, cancel := context.WithTimeout(h.ctx, h.Timeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			h.Counters.Panics.Add(1)
			h.Logger.Error("gendurable: a request to the gateway panicked",
				"request", fmt.Sprintf("%T", m), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			reply = &messages.Refused{RequestId: m.GetId(), Reason: messages.Refused_FAILED,
				Text: "gendurable: the gateway failed under this request; its log says why"}
		}
	}()
	return h.Answer(ctx, m)
}

// reply sends the reply, if somebody waits for it. It is called on goroutines. To send to another node may panic: the actor
// library does when its remote has just been closed.
func (h *hands) reply(root *actor.RootContext, to *actor.PID, reply messages.Reply) {
	if _, refused := reply.(*messages.Refused); refused {
		h.Counters.GatewayRefused.Add(1)
	}
	if to == nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			h.Counters.Panics.Add(1)
			h.Logger.Error("gendurable: a reply of the gateway could not be sent", "to", to.String(),
				"reply", fmt.Sprintf("%T", reply), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		}
	}()
	message := any(reply)
	if h.Outgoing != nil && to.GetAddress() != root.ActorSystem().Address() {
		var ok bool
		if message, ok = h.Outgoing(to, reply); !ok {
			h.Counters.GatewayDropped.Add(1)
			// There may be room for a word, after which the caller asks again sooner than after silence.
			if message, ok = h.Outgoing(to, &messages.Refused{RequestId: reply.GetRequestId(), Reason: messages.Refused_FAILED,
				Text: "gendurable: too much waits for your process to read it, so this answer was dropped; ask again"}); !ok {
				return
			}
		}
	}
	root.Send(to, message)
}

// maxID is the most bytes of a request's id: it becomes a request id or a dedup key.
const maxID = 1024

// Check refuses what no gateway of this version can answer; nil = nothing is wrong.
func Check(m messages.Request) *messages.Refused {
	refused := func(reason messages.Refused_Reason, format string, args ...any) *messages.Refused {
		return &messages.Refused{RequestId: m.GetId(), Reason: reason, Text: "gendurable: " + fmt.Sprintf(format, args...)}
	}
	switch need := messages.NeededLevel(m); {
	case need > messages.Level:
		return refused(messages.Refused_UNSUPPORTED,
			"the request needs level %d of the protocol, this node has %d; ask one that is newer", need, messages.Level)
	case m.GetId() == "":
		return refused(messages.Refused_INVALID, "the request has no id; with one it can be repeated when its reply is lost")
	case len(m.GetId()) > maxID:
		return &messages.Refused{Reason: messages.Refused_INVALID,
			Text: fmt.Sprintf("gendurable: the id of a request has at most %d bytes, not %d", maxID, len(m.GetId()))}
	}
	return nil
}
