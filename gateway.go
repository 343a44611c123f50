package gendurable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/gateway"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/messages"
	"github.com/gendurable/gendurable/pg"
)

// Gateway is the actor that takes requests from other actors: the messages of package messages, such as
// *messages.Insert. Those of this process send to it, and those of other nodes to its name at Address. See docs/remote.md.
func (e *Engine) Gateway() *actor.PID { return e.tree.pid(actors.NameGateway) }

// Address is where other nodes and clients reach this process; empty without Config.Cluster.
func (e *Engine) Address() string {
	if e.remote == nil {
		return ""
	}
	return e.remote.Address()
}

// openRemote makes the process reachable, before it has actors: PIDs carry the address.
func (e *Engine) openRemote() error {
	if e.cfg.Cluster == nil {
		return nil
	}
	if e.cfg.ActorSystem == nil {
		e.cfg.ActorSystem = actors.NewSystem(e.log)
	}
	var err error
	e.remote, err = cluster.OpenRemote(e.cfg.ActorSystem, *e.cfg.Cluster, e.log)
	return err
}

// closeRemote ends what openRemote began, when the actors are gone.
func (e *Engine) closeRemote() {
	if e.remote != nil {
		e.remote.Close()
	}
}

// firewall is nil when nothing comes from outside, or nothing is in its way.
func (e *Engine) firewall() *cluster.Firewall {
	if e.remote == nil {
		return nil
	}
	return e.remote.Firewall()
}

// gatewayConfig describes the gateway actor.
func (e *Engine) gatewayConfig(t *tree) gateway.Config {
	c := gateway.Config{
		Logger: e.log, Counters: t.counters, Answer: e.answer,
		Poke: func(queues []string, in time.Duration) { t.announce(e.known(queues), in) },
	}
	if e.remote != nil {
		c.Outgoing = e.remote.Outbox().Reply
	}
	return c
}

// known drops queues that this process neither runs nor inserts into: whatever a peer sends, it must not make them up.
func (e *Engine) known(queues []string) []string {
	var out []string
	for _, q := range queues {
		if e.registry.queues[q] {
			out = append(out, q)
		}
	}
	return out
}

// answer carries out a request to the gateway.
func (e *Engine) answer(ctx context.Context, request messages.Request) messages.Reply {
	reply, err := e.reply(ctx, request)
	if err != nil {
		return refusal(request.GetId(), err)
	}
	return reply
}

func (e *Engine) reply(ctx context.Context, request messages.Request) (messages.Reply, error) {
	switch m := request.(type) {
	case *messages.Insert:
		return e.answerInsert(ctx, m)
	case *messages.InsertMany:
		return e.answerInsertMany(ctx, m)
	case *messages.Signal:
		return e.answerSignal(ctx, m)
	case *messages.SignalMany:
		return e.answerSignalMany(ctx, m)
	case *messages.Cancel:
		return e.answerCancel(ctx, m)
	case *messages.Await:
		return e.answerAwait(ctx, m)
	case *messages.Get:
		return e.answerGet(ctx, m)
	case *messages.Hello:
		return &messages.NodeInfo{RequestId: m.Id, Level: messages.Level, Engine: e.cfg.Name, Node: e.node.Name,
			Incarnation: e.node.Incarnation, Queues: e.node.Queues, Machines: e.node.Machines}, nil
	}
	return nil, errUnsupported
}

var errUnsupported = errors.New("gendurable: this node does not know the request")

// refusal is the typed answer for an error.
func refusal(id string, err error) *messages.Refused {
	r := &messages.Refused{RequestId: id, Reason: messages.Refused_FAILED, Text: err.Error()}
	for _, known := range []struct {
		is     error
		reason messages.Refused_Reason
	}{
		{errUnsupported, messages.Refused_UNSUPPORTED}, {ErrDuplicate, messages.Refused_DUPLICATE},
		{ErrNoTarget, messages.Refused_NO_TARGET}, {ErrNotFound, messages.Refused_NOT_FOUND},
		{ErrUnknownMachine, messages.Refused_UNKNOWN_MACHINE}, {ErrUnknownQueue, messages.Refused_UNKNOWN_QUEUE},
		{ErrStopped, messages.Refused_STOPPED}, {ErrCodec, messages.Refused_CODEC}, {ErrInvalid, messages.Refused_INVALID},
	} {
		if errors.Is(err, known.is) {
			r.Reason = known.reason
			break
		}
	}
	var duplicate *DuplicateError
	if errors.As(err, &duplicate) {
		r.Instance, r.Key = int64(duplicate.Occupant), duplicate.Key
	}
	if r.Reason == messages.Refused_FAILED && pg.Classify(err) == pg.Data {
		r.Reason = messages.Refused_INVALID
	}
	return r
}

func (e *Engine) answerInsert(ctx context.Context, m *messages.Insert) (messages.Reply, error) {
	inst, err := e.instance(m, m.Id)
	if err != nil {
		return nil, err
	}
	results, err := e.InsertMany(ctx, []fsm.Instance{inst})
	if err != nil {
		return nil, err
	}
	r := results[0]
	if r.Duplicate {
		return nil, &DuplicateError{Key: m.GetOptions().GetCorrelationKey(), Occupant: r.ID}
	}
	return &messages.Inserted{RequestId: m.Id, Id: int64(r.ID), Repeated: r.Repeated}, nil
}

func (e *Engine) answerInsertMany(ctx context.Context, m *messages.InsertMany) (messages.Reply, error) {
	insts := make([]fsm.Instance, len(m.Inserts))
	for i, in := range m.Inserts {
		id := in.GetId()
		if id == "" {
			id = fmt.Sprintf("%s/%d", m.Id, i)
		}
		if in.GetLevel() > messages.Level {
			return nil, fmt.Errorf("%w: instance %d needs level %d of the protocol", errUnsupported, i, in.GetLevel())
		}
		inst, err := e.instance(in, id)
		if err != nil {
			return nil, fmt.Errorf("instance %d of %d: %w", i, len(insts), err)
		}
		insts[i] = inst
	}
	results, err := e.InsertMany(ctx, insts)
	if err != nil {
		return nil, err
	}
	reply := &messages.InsertedMany{RequestId: m.Id}
	for _, r := range results {
		reply.Results = append(reply.Results, &messages.InsertedMany_Result{Id: int64(r.ID), Duplicate: r.Duplicate, Repeated: r.Repeated})
	}
	return reply, nil
}

// instance makes an instance of what a message says. Its content is checked when it is inserted.
func (e *Engine) instance(m *messages.Insert, requestID string) (fsm.Instance, error) {
	spec := e.registry.newest(m.GetMachine(), int(m.GetVersion()))
	if spec == nil {
		return fsm.Instance{}, fmt.Errorf("%w: %q version %d; the node that was asked does not have it", ErrUnknownMachine, m.GetMachine(), m.GetVersion())
	}
	opts := []fsm.InsertOption{fsm.RequestID(requestID)}
	o := m.GetOptions()
	if o == nil {
		return spec.NewRaw(m.GetState(), opts...), nil
	}
	for _, s := range []struct {
		value  *string
		option func(string) fsm.InsertOption
	}{
		{o.Queue, func(q string) fsm.InsertOption { return fsm.Queue(q) }},
		{o.ConcurrencyKey, func(k string) fsm.InsertOption { return fsm.ConcurrencyKey(k) }},
		{o.CorrelationKey, fsm.CorrelationKey},
		{o.RateLimit, func(k string) fsm.InsertOption {
			if o.Weight != 0 {
				return fsm.RateLimit(k, o.Weight)
			}
			return fsm.RateLimit(k)
		}},
	} {
		if s.value != nil {
			opts = append(opts, s.option(*s.value))
		}
	}
	if o.Priority != nil {
		opts = append(opts, fsm.Priority(int(*o.Priority)))
	}
	if o.CorrelationScope != nil {
		var scope []fsm.Status
		for _, s := range o.CorrelationScope.Statuses {
			scope = append(scope, fsm.Status(s))
		}
		opts = append(opts, fsm.CorrelationScope(scope...))
	}
	switch t := o.Eligible.(type) {
	case *messages.InsertOptions_AtMicros:
		opts = append(opts, fsm.ScheduleAt(time.UnixMicro(t.AtMicros)))
	case *messages.InsertOptions_InMicros:
		opts = append(opts, fsm.ScheduleIn(micros(t.InMicros)))
	}
	return spec.NewRaw(m.GetState(), opts...), nil
}

// newest returns a machine's description, the newest one for version 0; nil when it is unknown here.
func (r *registry) newest(name string, version int) *fsm.Spec {
	if version != 0 {
		return r.spec(name, version)
	}
	var newest *fsm.Spec
	for ref, spec := range r.specs {
		if ref.name == name && (newest == nil || ref.version > newest.Version) {
			newest = spec
		}
	}
	return newest
}

// micros is a duration of so many microseconds, the longest there is when it is longer.
func micros(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Microsecond
}

// targetOf is the address in a message. What is wrong with it, Client says.
func targetOf(t *messages.Target) Ref {
	switch a := t.GetAddress().(type) {
	case *messages.Target_Id:
		return ID(a.Id)
	case *messages.Target_Key:
		return Key(a.Key)
	}
	return nil
}

// deliveryOf is a signal of a message; id is its dedup key unless it has one.
func deliveryOf(m *messages.Signal, id string) Delivery {
	d := Delivery{To: targetOf(m.GetTo()), Name: m.GetName(), DedupKey: m.GetDedupKey()}
	if d.DedupKey == "" {
		d.DedupKey = id
	}
	if len(m.GetPayload()) > 0 {
		d.Payload = json.RawMessage(m.GetPayload())
	}
	return d
}

func (e *Engine) answerSignal(ctx context.Context, m *messages.Signal) (messages.Reply, error) {
	results, err := e.SignalMany(ctx, []Delivery{deliveryOf(m, m.Id)})
	if err != nil {
		return nil, err
	}
	if err := results[0].Err; err != nil {
		return nil, err
	}
	return &messages.Signaled{RequestId: m.Id, Target: int64(results[0].Target), Duplicate: results[0].Duplicate}, nil
}

func (e *Engine) answerSignalMany(ctx context.Context, m *messages.SignalMany) (messages.Reply, error) {
	deliveries := make([]Delivery, len(m.Signals))
	for i, s := range m.Signals {
		id := s.GetId()
		if id == "" {
			id = fmt.Sprintf("%s/%d", m.Id, i)
		}
		if s.GetLevel() > messages.Level {
			return nil, fmt.Errorf("%w: signal %d needs level %d of the protocol", errUnsupported, i, s.GetLevel())
		}
		deliveries[i] = deliveryOf(s, id)
	}
	results, err := e.SignalMany(ctx, deliveries)
	if err != nil {
		return nil, err
	}
	reply := &messages.SignaledMany{RequestId: m.Id}
	for _, r := range results {
		reply.Results = append(reply.Results, &messages.SignaledMany_Result{Target: int64(r.Target), Duplicate: r.Duplicate})
	}
	return reply, nil
}

func (e *Engine) answerCancel(ctx context.Context, m *messages.Cancel) (messages.Reply, error) {
	var opts []CancelOption
	if m.Cascade {
		opts = append(opts, Cascade())
	}
	c, err := e.Cancel(ctx, targetOf(m.Target), m.Reason, opts...)
	if err != nil {
		return nil, err
	}
	results := map[Cancellation]messages.Cancelled_Result{
		CancelEnded: messages.Cancelled_ENDED, CancelRequested: messages.Cancelled_REQUESTED, CancelTooLate: messages.Cancelled_TOO_LATE,
	}
	return &messages.Cancelled{RequestId: m.Id, Result: results[c]}, nil
}

func (e *Engine) answerAwait(ctx context.Context, m *messages.Await) (messages.Reply, error) {
	if wait := micros(m.TimeoutMicros); wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	var opts []AwaitOption
	if m.UntilTerminal {
		opts = append(opts, UntilTerminal())
	}
	s, err := e.Await(ctx, targetOf(m.Target), opts...)
	switch {
	case err == nil || ctx.Err() == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded): // perhaps before the key was looked up: then without an id
		return &messages.Refused{RequestId: m.Id, Reason: messages.Refused_STILL_BUSY, Text: err.Error(), Instance: int64(s.ID)}, nil
	default:
		return nil, ErrStopped
	}
	if err != nil {
		r := refusal(m.Id, err)
		r.Instance = int64(s.ID)
		return r, nil
	}
	return &messages.Settled{RequestId: m.Id, Id: int64(s.ID), Status: string(s.Status), Result: s.Result, Error: s.Error, Awaits: s.Awaits}, nil
}

func (e *Engine) answerGet(ctx context.Context, m *messages.Get) (messages.Reply, error) {
	i, err := e.Get(ctx, targetOf(m.Target))
	if err != nil {
		return nil, err
	}
	return &messages.Got{
		RequestId: m.Id, Id: int64(i.ID), Machine: i.Machine, Version: int32(i.Version), Step: i.Step, Status: string(i.Status),
		State: i.State, Result: i.Result, LastError: i.LastError, Queue: i.Queue, Priority: int32(i.Priority),
		Attempt: int32(i.Attempt), Crashes: int32(i.Crashes), Awaits: i.Awaits, AwaitDeadline: unixMicro(i.AwaitDeadline),
		EligibleAt: unixMicro(i.EligibleAt), ConcurrencyKey: i.ConcurrencyKey, RateLimit: i.RateLimit, Weight: i.Weight,
		CorrelationKey: i.CorrelationKey, ParentId: int64(i.ParentID), ChildrenPending: int32(i.ChildrenPending),
		LockedBy: i.LockedBy, LeaseExpiresAt: unixMicro(i.LeaseExpiresAt), CancelRequested: i.CancelRequested,
		CancelReason: i.CancelReason, InsertedAt: unixMicro(i.InsertedAt), UpdatedAt: unixMicro(i.UpdatedAt),
	}, nil
}

func unixMicro(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
