package cluster

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/messages"
)

// insert validates and encodes an instance. What the machine's own process must know (its step, its queue, its limits) is
// checked by the node.
func (c *Client) insert(inst fsm.Instance, opts []fsm.InsertOption) (*messages.Insert, error) {
	if len(opts) > 0 {
		inst = inst.With(opts...)
	}
	in, err := inst.Insertion(c.limits)
	if err != nil {
		return nil, err
	}
	m := &messages.Insert{
		Id: in.RequestID, Machine: in.Machine, Version: int32(in.Version), State: in.State,
		Options: &messages.InsertOptions{
			Queue: proto.String(in.Queue), Priority: proto.Int32(int32(in.Priority)),
			ConcurrencyKey: some(in.ConcurrencyKey), CorrelationKey: some(in.CorrelationKey),
			RateLimit: some(in.RateLimit), Weight: in.Weight,
		},
	}
	if m.Id == "" {
		m.Id = c.id()
	}
	if in.CorrelationKey != "" {
		m.Options.CorrelationScope = &messages.CorrelationScope{Statuses: in.CorrelationScope}
	}
	switch {
	case !in.EligibleAt.IsZero():
		m.Options.Eligible = &messages.InsertOptions_AtMicros{AtMicros: in.EligibleAt.UnixMicro()}
	case in.Delay > 0:
		m.Options.Eligible = &messages.InsertOptions_InMicros{InMicros: in.Delay.Microseconds()}
	}
	return m, nil
}

func some(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// signal validates and encodes a delivery. Its id and its dedup key are one.
func (c *Client) signal(d instance.Delivery) (*messages.Signal, error) {
	to, err := target(d.To)
	if err != nil {
		return nil, err
	}
	if err := fsm.CheckName("signal name", d.Name); err != nil {
		return nil, err
	}
	if d.DedupKey != "" {
		if err := fsm.CheckKey("dedup key", d.DedupKey); err != nil {
			return nil, err
		}
	}
	if d.Payload == nil {
		d.Payload = struct{}{}
	}
	payload, err := fsm.EncodePayload("signal payload", d.Payload, c.limits)
	if err != nil {
		return nil, err
	}
	return &messages.Signal{Id: c.id(), To: to, Name: d.Name, Payload: payload, DedupKey: d.DedupKey}, nil
}

func target(ref instance.Ref) (*messages.Target, error) {
	id, key, err := instance.Address(ref)
	switch {
	case err != nil:
		return nil, err
	case key != "":
		return &messages.Target{Address: &messages.Target_Key{Key: key}}, nil
	}
	return &messages.Target{Address: &messages.Target_Id{Id: id}}, nil
}

func instanceOf(r *messages.Got) *instance.Instance {
	return &instance.Instance{
		ID: instance.ID(r.Id), Machine: r.Machine, Version: int(r.Version), Step: r.Step, Status: fsm.Status(r.Status),
		State: r.State, Result: r.Result, LastError: r.LastError, Queue: r.Queue, Priority: int(r.Priority),
		Attempt: int(r.Attempt), Crashes: int(r.Crashes), Awaits: r.Awaits, AwaitDeadline: when(r.AwaitDeadline),
		EligibleAt: when(r.EligibleAt), ConcurrencyKey: r.ConcurrencyKey, RateLimit: r.RateLimit, Weight: r.Weight,
		CorrelationKey: r.CorrelationKey, ParentID: instance.ID(r.ParentId), ChildrenPending: int(r.ChildrenPending),
		LockedBy: r.LockedBy, LeaseExpiresAt: when(r.LeaseExpiresAt), CancelRequested: r.CancelRequested,
		CancelReason: r.CancelReason, InsertedAt: when(r.InsertedAt), UpdatedAt: when(r.UpdatedAt),
	}
}

func when(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}
