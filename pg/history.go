package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Record is what an outcome adds to the history of its instance beyond what the row itself says.
type Record struct {
	Step    string        // that ran
	Attempt int           // of that step
	Took    time.Duration // the run, without the commit
	// Unrun: no step ran, the row is put back. That is no transition, unless a cancel has been requested, which makes it the end.
	Unrun bool
}

// Transition is a row of an instance's history.
type Transition struct {
	ID       int64 // rises within an instance
	At       time.Time
	Step     string // that ran
	Attempt  int
	Outcome  string // next, retry, await, children, done, stop; cancelled, retried
	NextStep string // empty = none: it ended
	Status   Status // after the transition
	Error    string
	Worker   string // the claim; empty for a cancel and a retry
	Took     time.Duration
}

// outcomeNames are the outcomes of a history by kind.
var outcomeNames = [...]string{
	KindNext: "next", KindRetry: "retry", KindAwait: "await", KindChildren: "children", KindContinue: "next",
	KindDone: "done", KindFailed: "stop",
}

// History returns the transitions of an instance after a given one (0 = from the first), oldest first, at most limit. It is
// empty for one that keeps none. One round trip.
func (s *Store) History(ctx context.Context, db DB, instance, after int64, limit int) ([]Transition, error) {
	var list []Transition
	err := onFreshPlan(ctx, db, func(db DB) error {
		rows, err := db.Query(ctx, s.sql("history"), instance, after, limit)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Transition, err error) {
			var took int64
			err = row.Scan(&t.ID, &t.At, &t.Step, &t.Attempt, &t.Outcome, &t.NextStep, &t.Status, &t.Error, &t.Worker, &took)
			t.Took = time.Duration(took) * time.Microsecond
			return t, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pg: read the history of instance %d: %w", instance, err)
	}
	return list, nil
}

// queueHistory writes the records of the outcomes that ask for it.
func (f *flush) queueHistory(b *pgx.Batch) {
	var of entries
	for _, e := range f.entries {
		if e.Record != nil {
			of = append(of, e)
		}
	}
	if len(of) == 0 {
		return
	}
	n := len(of)
	steps, attempts, took := make([]string, n), make([]int32, n), make([]int64, n)
	outcomes, errs := make(texts, n), make(texts, n) // '' is null
	for i, e := range of {
		steps[i], attempts[i], took[i] = e.Record.Step, int32(e.Record.Attempt), e.Record.Took.Microseconds()
		if errs[i] = e.Error; !e.Record.Unrun {
			outcomes[i] = outcomeNames[e.Kind]
		}
	}
	b.Queue(f.store.sql("flush_history"), of.ids(), of.workers(), steps, attempts, outcomes, errs, took, of.claims())
}

// queueTraces notes where the traces of the rows go on. A continued row's next step runs where this one ran, and knows.
func (f *flush) queueTraces(b *pgx.Batch) {
	var ids []int64
	var traces texts
	for _, of := range f.kinds {
		for _, e := range of {
			if e.TraceContext != "" && e.Kind != KindContinue {
				ids, traces = append(ids, e.ID), append(traces, e.TraceContext)
			}
		}
	}
	if len(ids) > 0 {
		b.Queue(f.store.sql("flush_trace"), ids, traces)
	}
}

// childTraces are the trace contexts of all children, n of them.
func (of entries) childTraces(n int) any {
	var traces []string
	i := 0
	for _, e := range of {
		for c := range e.Children {
			if trace := e.Children[c].TraceContext; trace != "" {
				if traces == nil {
					traces = make([]string, n)
				}
				traces[i] = trace
			}
			i++
		}
	}
	if traces == nil {
		return nil // and not a slice that is nil: it would be allocated as a parameter
	}
	return traces
}
