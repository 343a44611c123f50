package fsm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Signal is one entry of an instance's inbox.
type Signal struct {
	ID         int64
	Name       string
	Payload    json.RawMessage
	InsertedAt time.Time
}

// Decode decodes the payload into v, a pointer.
func (s *Signal) Decode(v any) error {
	if err := json.Unmarshal(s.Payload, v); err != nil {
		return fmt.Errorf("fsm: decode the payload of signal %d, %q: %w", s.ID, s.Name, err)
	}
	return nil
}

// Child is a child instance as its parent sees it.
type Child struct {
	ID             int64
	Machine        string
	Status         Status
	CorrelationKey string
	State          json.RawMessage
	Result         json.RawMessage // of a done child
	Error          string          // of a failed child
}

// DecodeState decodes the child's state into v, a pointer.
func (c *Child) DecodeState(v any) error {
	if err := decodeObject(c.State, v); err != nil {
		return fmt.Errorf("fsm: decode the state of child %d: %w", c.ID, err)
	}
	return nil
}

// ErrNoResult is the answer of Child.DecodeResult for a child that recorded no result.
var ErrNoResult = errors.New("fsm: the child has no result")

// DecodeResult decodes the result of a done child into v, a pointer. Without a result it is ErrNoResult.
func (c *Child) DecodeResult(v any) error {
	if len(c.Result) == 0 {
		return fmt.Errorf("%w: child %d is %s", ErrNoResult, c.ID, c.Status)
	}
	if err := json.Unmarshal(c.Result, v); err != nil {
		return fmt.Errorf("fsm: decode the result of child %d: %w", c.ID, err)
	}
	return nil
}

// Call is one run of a step: what it works on. It belongs to the step's goroutine and ends with the step.
type Call[S any] struct {
	ID             int64 // of the instance
	Machine        string
	Version        int
	Step           string
	Attempt        int // how often this step was tried before: 0 at first
	Queue          string
	CorrelationKey string // empty = none
	ParentID       int64  // 0 = none

	// State is the machine's state. The step changes it in place; what it leaves is stored with its outcome,
	// except with Done and Stop. An error handler gets it as it was before the step.
	State S

	// Awaited are the signals that this step was waiting for, oldest first; progress (Next, ScheduleChildren)
	// deletes them. None after a timeout, and in a step that no await led to.
	Awaited []Signal
	// Inbox is everything in the inbox, oldest first. MoreInbox: there is more than fits here, see NextInbox.
	Inbox     []Signal
	MoreInbox bool

	// Children are the children that are still in the database, those of earlier rounds too, oldest first.
	// MoreChildren: there are more than fit here, see NextChildren. ChildCounts counts all of them.
	Children     []Child
	MoreChildren bool
	ChildCounts  map[Status]int64

	spec   *Spec
	pages  Pages
	awaits []string
	seen   []int64 // the ids of all inbox entries read so far; nil until NextInbox needs them
	handed []int64 // the ids of the awaited ones among them
	last   int64   // the highest id of the children read so far
}

// openCall decodes the state of an input into a call.
func openCall[S any](spec *Spec, in *Input) (view, error) {
	c := &Call[S]{
		ID: in.ID, Machine: spec.Name, Version: spec.Version, Step: in.Step, Attempt: in.Attempt,
		Queue: in.Queue, CorrelationKey: in.CorrelationKey, ParentID: in.ParentID,
		Inbox: in.Inbox, MoreInbox: in.MoreInbox,
		Children: in.Children, MoreChildren: in.MoreChildren, ChildCounts: in.ChildCounts,
		spec: spec, pages: in.Pages, awaits: in.Awaits,
	}
	if err := decodeObject(in.State, &c.State); err != nil {
		return nil, err
	}
	if len(in.Inbox) > 0 && len(in.Awaits) > 0 {
		c.Awaited = c.take(in.Inbox)
	}
	if n := len(in.Children); n > 0 {
		c.last = in.Children[n-1].ID
	}
	return c, nil
}

// take picks the awaited signals and notes that they were handed over.
func (c *Call[S]) take(signals []Signal) []Signal {
	var awaited []Signal
	for i := range signals {
		if slices.Contains(c.awaits, signals[i].Name) {
			awaited = append(awaited, signals[i])
			c.handed = append(c.handed, signals[i].ID)
		}
	}
	return awaited
}

// NextInbox reads the next page of an inbox that does not fit into Inbox, oldest first; none when there is no
// more. Awaited signals that it returns count as handed to this step, like those in Awaited.
func (c *Call[S]) NextInbox(ctx context.Context) ([]Signal, error) {
	if !c.MoreInbox || c.pages == nil {
		return nil, nil
	}
	if c.seen == nil {
		for i := range c.Inbox {
			c.seen = append(c.seen, c.Inbox[i].ID)
		}
	}
	page, err := c.pages.Signals(ctx, c.ID, c.seen)
	if err != nil {
		return nil, fmt.Errorf("fsm: read more of the inbox of instance %d: %w", c.ID, err)
	}
	for i := range page {
		c.seen = append(c.seen, page[i].ID)
	}
	c.take(page)
	c.MoreInbox = len(page) > 0
	return page, nil
}

// NextChildren reads the next page of children that do not fit into Children, oldest first; none when there are no
// more.
func (c *Call[S]) NextChildren(ctx context.Context) ([]Child, error) {
	if !c.MoreChildren || c.pages == nil {
		return nil, nil
	}
	page, err := c.pages.Children(ctx, c.ID, c.last)
	if err != nil {
		return nil, fmt.Errorf("fsm: read more children of instance %d: %w", c.ID, err)
	}
	if n := len(page); n > 0 {
		c.last = page[n-1].ID
	}
	c.MoreChildren = len(page) > 0
	return page, nil
}

// New is a new instance of the machine that this step belongs to: for a machine that is its own child, whose
// variable its own steps cannot name without an initialization cycle.
func (c *Call[S]) New(state S, opts ...InsertOption) Instance {
	return Instance{spec: c.spec, state: &state, opts: slices.Clone(opts)}
}

func (c *Call[S]) encodeState(l *Limits) ([]byte, error) { return sealObject("state", &c.State, l) }

func (c *Call[S]) handedIDs() []int64 { return c.handed }

func (c *Call[S]) withoutSignals(handed []int64) {
	c.Awaited, c.Inbox, c.MoreInbox = nil, nil, false
	if len(handed) > len(c.handed) {
		c.handed = handed
	}
}
