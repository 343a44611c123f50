package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/proto"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/messages"
)

const (
	// awaitTry is how long one message of Await waits at the gateway.
	awaitTry = 10 * time.Second
	// maxRequest is the largest request.
	maxRequest = 32 << 20
	// retryMin and retryMax bound the pause before a request is sent again after an answer that says so.
	retryMin, retryMax = 20 * time.Millisecond, time.Second
)

// RefusedError is a gateway's refusal. It matches the error of package gendurable that stands for its reason.
type RefusedError struct {
	Reason messages.Refused_Reason
	Text   string
	// Instance is the one that the refusal speaks of; 0 = none.
	Instance instance.ID
	is       error
}

func (e *RefusedError) Error() string { return e.Text }

// Unwrap returns the error that stands for the reason; nil when there is none.
func (e *RefusedError) Unwrap() error { return e.is }

var refusals = map[messages.Refused_Reason]error{
	messages.Refused_INVALID:         instance.ErrInvalid,
	messages.Refused_DUPLICATE:       instance.ErrDuplicate,
	messages.Refused_NO_TARGET:       instance.ErrNoTarget,
	messages.Refused_NOT_FOUND:       instance.ErrNotFound,
	messages.Refused_UNKNOWN_MACHINE: instance.ErrUnknownMachine,
	messages.Refused_UNKNOWN_QUEUE:   instance.ErrUnknownQueue,
	messages.Refused_STILL_BUSY:      instance.ErrStillBusy,
	messages.Refused_CODEC:           instance.ErrCodec,
	messages.Refused_STOPPED:         instance.ErrStopped,
	messages.Refused_BUSY:            ErrNoGateway,
	messages.Refused_UNSUPPORTED:     ErrUnsupported,
}

func refused(r *messages.Refused) error {
	if r.Reason == messages.Refused_DUPLICATE {
		return &instance.DuplicateError{Key: r.Key, Occupant: instance.ID(r.Instance)}
	}
	return &RefusedError{Reason: r.Reason, Text: r.Text, Instance: instance.ID(r.Instance), is: refusals[r.Reason]}
}

// elsewhere reports whether another gateway may well answer better.
func elsewhere(reason messages.Refused_Reason) bool {
	switch reason {
	case messages.Refused_UNKNOWN_MACHINE, messages.Refused_UNKNOWN_QUEUE, messages.Refused_UNSUPPORTED:
		return true
	}
	return false
}

// again reports whether the request should be sent again: nothing speaks against it.
func again(reason messages.Refused_Reason) bool {
	switch reason {
	case messages.Refused_BUSY, messages.Refused_STOPPED, messages.Refused_FAILED:
		return true
	}
	return false
}

// id makes an id for a request.
func (c *Client) id() string { return c.token + "-" + strconv.FormatUint(c.n.Add(1), 36) }

// gateway addresses the n-th gateway.
func (c *Client) gateway(n uint32) *actor.PID {
	address := c.system.Address()
	if g := c.cfg.Gateways; len(g) > 0 {
		address = g[int(n)%len(g)]
	}
	return GatewayPID(address, c.cfg.Engine)
}

// GatewayPID addresses the gateway of an engine on the node at address: for actors of the host that send it messages of
// package messages themselves.
func GatewayPID(address, engine string) *actor.PID {
	return actor.NewPID(address, actors.NameRoot(engine)+"/"+actors.NameGateway)
}

// checkMany refuses a request that a firewall would drop.
func checkMany(n int) error {
	if n > maxMany {
		return fmt.Errorf("%w: the request has %d parts, more than %d; send it in several", instance.ErrInvalid, n, maxMany)
	}
	return nil
}

// call carries a request to its answer: it takes a turn, and then tries for as long as Patience.
func (c *Client) call(ctx context.Context, m messages.Request) (messages.Reply, error) {
	size := int64(proto.Size(m))
	if size > maxRequest {
		return nil, fmt.Errorf("%w: the request has %d bytes, more than %d; send it in parts", instance.ErrInvalid, size, maxRequest)
	}
	if err := c.calls.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("gendurable: wait for a turn: %w", context.Cause(ctx))
	}
	defer c.calls.Release(1)
	if err := c.bytes.Acquire(ctx, size); err != nil {
		return nil, fmt.Errorf("gendurable: wait for a turn: %w", context.Cause(ctx))
	}
	defer c.bytes.Release(size)
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Patience, ErrNoGateway)
	defer cancel()
	return c.try(ctx, m, c.cfg.Try)
}

// await is call for an Await, which waits as long as its context.
func (c *Client) await(ctx context.Context, m *messages.Await) (messages.Reply, error) {
	return c.try(ctx, m, awaitTry+c.cfg.Try)
}

// try sends the request to one gateway after the other until one of them gives an answer that stands, or ctx ends.
func (c *Client) try(ctx context.Context, m messages.Request, patience time.Duration) (messages.Reply, error) {
	pause := actors.Backoff{First: retryMin, Max: retryMax}
	var last error
	for asked := 0; ; {
		n := c.at.Load()
		reply, err := c.ask(ctx, c.gateway(n), m, patience)
		switch r, isRefusal := reply.(*messages.Refused); {
		case err == nil && !isRefusal:
			return reply, nil
		case err == nil && elsewhere(r.Reason) && asked < len(c.cfg.Gateways)-1:
			// Each of them once; it is no reason to hurry, or to wait.
			asked++
			last = refused(r)
			c.at.CompareAndSwap(n, n+1)
			continue
		case err == nil && !again(r.Reason):
			return nil, refused(r)
		case err == nil:
			last = refused(r)
		case ctx.Err() != nil || c.done.Err() != nil:
			return nil, c.gaveUp(ctx, last)
		default:
			last = err
		}
		c.at.CompareAndSwap(n, n+1)
		select {
		case <-time.After(pause.Next()):
		case <-ctx.Done():
			return nil, c.gaveUp(ctx, last)
		case <-c.done.Done():
			return nil, c.gaveUp(ctx, last)
		}
	}
}

// gaveUp is the error of a request whose fate is not known.
func (c *Client) gaveUp(ctx context.Context, last error) error {
	why := context.Cause(ctx)
	if c.done.Err() != nil {
		why = fmt.Errorf("%w: the client was closed", instance.ErrStopped)
	}
	if last == nil || errors.Is(last, why) {
		return fmt.Errorf("gendurable: no answer from %v: %w", c.cfg.Gateways, why)
	}
	return fmt.Errorf("gendurable: no answer from %v: %w; before that: %w", c.cfg.Gateways, why, last)
}

// errNobody: the node has no such gateway just now, or cannot be reached.
var errNobody = errors.New("gendurable: there is no gateway of this engine at the address")

// errSilence: the answer did not come in time.
var errSilence = errors.New("gendurable: the gateway did not answer in time")

// ask sends one message and waits for its reply.
func (c *Client) ask(ctx context.Context, to *actor.PID, m messages.Request, patience time.Duration) (messages.Reply, error) {
	p := &inbox{replies: make(chan any, 1)}
	// The firewall lets replies through to such names alone. The library's own futures cannot be waited for together with a context.
	self, _ := c.system.ProcessRegistry.Add(p, futurePrefix+c.token+"/"+strconv.FormatUint(c.n.Add(1), 36))
	defer c.system.ProcessRegistry.Remove(self)
	// The library panics when its Remote has just been closed.
	if err := guarded(func() { c.system.Root.RequestWithCustomSender(to, m, self) }); err != nil {
		return nil, fmt.Errorf("gendurable: send a request to %s: %w", to.Address, err)
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case reply := <-p.replies:
			switch r := reply.(type) {
			case messages.Reply:
				if r.GetRequestId() == m.GetId() {
					return r, nil
				}
			case *actor.DeadLetterResponse:
				return nil, fmt.Errorf("%w: %s", errNobody, to.Address)
			}
		case <-late.C:
			return nil, fmt.Errorf("%w: %s", errSilence, to.Address)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-c.done.Done():
			return nil, instance.ErrStopped
		}
	}
}

// inbox is a process that takes one reply. It is no actor: it costs an entry in the system's registry.
type inbox struct{ replies chan any }

func (i *inbox) SendUserMessage(_ *actor.PID, message any) {
	_, m, _ := actor.UnwrapEnvelope(message)
	select {
	case i.replies <- m:
	default: // one is enough
	}
}

func (i *inbox) SendSystemMessage(*actor.PID, any) {}
func (i *inbox) Stop(*actor.PID)                   {}
