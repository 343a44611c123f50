package instance

import (
	"encoding/json"
	"fmt"

	"github.com/gendurable/gendurable/fsm"
)

// Settled is where an awaited instance came to rest.
type Settled struct {
	ID ID
	// Status is fsm.StatusDone, fsm.StatusFailed, or fsm.AwaitingSignal when it parked.
	Status fsm.Status
	// Result is the result of a done instance.
	Result json.RawMessage
	// Error is the text of a failed instance.
	Error string
	// Awaits are the names that a parked instance waits for.
	Awaits []string
}

// Done reports whether the instance ended well.
func (s Settled) Done() bool { return s.Status == fsm.StatusDone }

// Err returns the failure of a failed instance, nil otherwise.
func (s Settled) Err() error {
	if s.Status != fsm.StatusFailed {
		return nil
	}
	return fmt.Errorf("gendurable: instance %d failed: %s", s.ID, s.Error)
}

// Decode decodes the result of a done instance. For a failed one it returns Err.
func (s Settled) Decode(v any) error {
	if err := s.Err(); err != nil {
		return err
	}
	if s.Status != fsm.StatusDone {
		return fmt.Errorf("gendurable: instance %d has no result: it is %s", s.ID, s.Status)
	}
	if err := json.Unmarshal(s.Result, v); err != nil {
		return fmt.Errorf("gendurable: decode the result of instance %d: %w", s.ID, err)
	}
	return nil
}

// AwaitOption is an option of Await.
type AwaitOption func(*Awaiting)

// Awaiting is what the options of one Await set.
type Awaiting struct {
	// UntilTerminal: a parked instance is no answer.
	UntilTerminal bool
}

// AwaitingOf applies options.
func AwaitingOf(opts []AwaitOption) Awaiting {
	var a Awaiting
	for _, opt := range opts {
		opt(&a)
	}
	return a
}

// UntilTerminal makes Await wait on when the instance parks for a signal.
func UntilTerminal() AwaitOption { return func(a *Awaiting) { a.UntilTerminal = true } }
