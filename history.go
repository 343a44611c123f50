package gendurable

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gendurable/gendurable/fsm"
)

// MaxHistory is the most transitions that one call of History returns.
const MaxHistory = 1000

// Transition is one entry of an instance's history: a step that ended, a cancel, or a retry.
type Transition struct {
	// Seq rises with each transition of an instance, with gaps. It is the After of the next page.
	Seq int64
	// At is when the transition was committed, by the database's clock (the beginning of the transaction).
	At time.Time
	// Step is the step that ran, Attempt which attempt of it (from 0), Took how long its code ran; all of the instance as
	// it stood when a cancel ended it, or when a retry had set it back.
	Step    string
	Attempt int
	Took    time.Duration
	// Outcome is what came of it: next, retry, await, children, done or stop; cancelled when a cancel ended the instance,
	// whatever the step returned; retried when Retry let a failed instance run again.
	Outcome string
	// Next is the step the instance went to; empty when it ended.
	Next string
	// Status is the instance's after the transition: executing when the next step ran in the same task.
	Status fsm.Status
	// Error is what a stop, or a retry after an error, recorded.
	Error string
	// Worker is the claim that ran the step: engine, queue, node and incarnation. Empty for a cancel of an instance that
	// did not run, and for a retry.
	Worker string
}

// HistoryPage is which part of a history to read. The zero value is its beginning.
type HistoryPage struct {
	// After is the Seq of the last transition that is known already; 0 = none.
	After int64
	// Limit is how many transitions to read at most. Default 100, at most MaxHistory.
	Limit int
}

// History returns the transitions of an instance, oldest first, a page at a time: an empty page is the end. Only machines
// with fsm.History keep one; of others, and of instances that are gone, it is empty. It takes one round trip, on an index,
// and one more when the instance is named by its key.
func (c *Client) History(ctx context.Context, ref Ref, page HistoryPage) ([]Transition, error) {
	orInt(&page.Limit, 100)
	if page.Limit < 1 || page.Limit > MaxHistory || page.After < 0 {
		return nil, fmt.Errorf("%w: a HistoryPage of %d after %d: Limit must be between 1 and %d, After not negative",
			ErrInvalid, page.Limit, page.After, MaxHistory)
	}
	id, err := c.resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	rows, err := c.store.History(ctx, c.pool, id, page.After, page.Limit)
	if err != nil {
		return nil, fmt.Errorf("gendurable: history of %s: %w", describe(ref), err)
	}
	list := make([]Transition, len(rows))
	for i, r := range rows {
		list[i] = Transition{
			Seq: r.ID, At: r.At, Step: r.Step, Attempt: r.Attempt, Took: r.Took, Outcome: r.Outcome, Next: r.NextStep,
			Status: fsm.Status(r.Status), Error: r.Error, Worker: r.Worker,
		}
	}
	return list, nil
}

// historic lists the machines that keep a history.
func historic(defs []fsm.Definition) []string {
	var names []string
	for _, def := range defs {
		if spec := def.Spec(); spec.History && !slices.Contains(names, spec.Name) {
			names = append(names, spec.Name)
		}
	}
	return names
}
