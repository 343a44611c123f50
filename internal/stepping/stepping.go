// Package stepping is what stands between a claimed row and the code of its step, and between the step's outcome and the
// statement that commits it. The step actor uses it, and the test helper that runs steps without actors.
package stepping

import (
	"context"
	"fmt"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// pageSize is how many signals or children a step reads at once beyond those it was handed.
const pageSize = 1000

var kinds = map[fsm.Kind]pg.Kind{
	fsm.KindNext:     pg.KindNext,
	fsm.KindRetry:    pg.KindRetry,
	fsm.KindAwait:    pg.KindAwait,
	fsm.KindChildren: pg.KindChildren,
	fsm.KindDone:     pg.KindDone,
	fsm.KindStop:     pg.KindFailed,
}

// Outcome is what a step came to as the database wants it.
func Outcome(worker string, row *pg.Claimed, e *fsm.Encoded) pg.Outcome {
	o := pg.Outcome{
		ID: row.ID, Worker: worker, Claim: row.Claim, Kind: kinds[e.Kind],
		Step: e.Step, State: e.State, Delay: e.Delay, Uncounted: e.Uncounted,
		Result: e.Result, Error: e.Error, Awaits: e.Awaits, Timeout: e.Timeout,
		RateLimit: e.RateLimit, Weight: e.Weight, Key: pg.KeyChange(e.Key), NewKey: e.NewKey, Handed: e.Handed,
		ParentID: row.ParentID, HasInbox: row.HasInbox,
	}
	if row.ConcurrencyShard != nil && *row.ConcurrencyShard >= 0 {
		o.SlotKey, o.SlotShard = row.ConcurrencyKey, *row.ConcurrencyShard
	}
	if len(e.Children) > 0 {
		o.Children = make([]pg.Insertion, len(e.Children))
		for i, c := range e.Children {
			o.Children[i] = pg.Insertion(c)
		}
	}
	return o
}

// Refusal says why a row must be ended instead of run; empty = run it.
func Refusal(row *pg.Claimed, spec *fsm.Spec) string {
	switch {
	case row.CancelReason != nil:
		return "cancelled: " + *row.CancelReason
	case spec.MaxCrashes > 0 && row.Crashes >= spec.MaxCrashes:
		return fmt.Sprintf("step %q took its worker down %d times in a row and is not run again (MaxCrashes is %d); "+
			"look for runs out of memory, fatal errors and exits, then retry the instance", row.Step, row.Crashes, spec.MaxCrashes)
	case spec.MaxAttempts > 0 && row.Attempt >= spec.MaxAttempts:
		return fmt.Sprintf("gave up after %d attempts, the last of which ended without an outcome (MaxAttempts is %d)",
			row.Attempt, spec.MaxAttempts)
	}
	return ""
}

// Failure is the outcome of a row that is ended instead of run, or whose outcome the database refused for good.
func Failure(reason string) *fsm.Encoded {
	return &fsm.Encoded{Kind: fsm.KindStop, Error: fsm.CleanError(reason)}
}

// Pages reads what a claim did not hand over at once. *pg.Store satisfies it.
type Pages interface {
	InboxPage(ctx context.Context, id int64, handed []int64, limit int) ([]pg.Signal, error)
	ChildrenPage(ctx context.Context, id, after int64, limit int) ([]pg.Child, error)
}

// Input is a row as the step's code wants it. The caller sets Grace and Abandon.
func Input(row *pg.Claimed, limits fsm.Limits, store Pages) *fsm.Input {
	in := &fsm.Input{
		ID: row.ID, Step: row.Step, Attempt: row.Attempt, State: row.State, Queue: row.Queue,
		CorrelationKey: row.CorrelationKey, ParentID: row.ParentID, Awaits: row.Awaits,
		Inbox: signals(row.Inbox), MoreInbox: row.MoreInbox,
		Children: children(row.Children), MoreChildren: row.MoreChildren,
		Limits: limits,
	}
	if len(row.ChildCounts) > 0 {
		in.ChildCounts = make(map[fsm.Status]int64, len(row.ChildCounts))
		for status, n := range row.ChildCounts {
			in.ChildCounts[fsm.Status(status)] = n
		}
	}
	if row.MoreInbox || row.MoreChildren {
		in.Pages = pages{store}
	}
	return in
}

func signals(rows []pg.Signal) []fsm.Signal {
	if len(rows) == 0 {
		return nil
	}
	out := make([]fsm.Signal, len(rows))
	for i, r := range rows {
		out[i] = fsm.Signal{ID: r.ID, Name: r.Name, Payload: r.Payload, InsertedAt: r.InsertedAt}
	}
	return out
}

func children(rows []pg.Child) []fsm.Child {
	if len(rows) == 0 {
		return nil
	}
	out := make([]fsm.Child, len(rows))
	for i, r := range rows {
		out[i] = fsm.Child{
			ID: r.ID, Machine: r.Machine, Status: fsm.Status(r.Status), CorrelationKey: r.CorrelationKey,
			State: r.State, Result: r.Result, Error: r.Error,
		}
	}
	return out
}

// pages is fsm.Pages over the store.
type pages struct{ store Pages }

func (p pages) Signals(ctx context.Context, id int64, handed []int64) ([]fsm.Signal, error) {
	rows, err := p.store.InboxPage(ctx, id, handed, pageSize)
	return signals(rows), err
}

func (p pages) Children(ctx context.Context, id, after int64) ([]fsm.Child, error) {
	rows, err := p.store.ChildrenPage(ctx, id, after, pageSize)
	return children(rows), err
}
