package pg

import "github.com/jackc/pgx/v5"

// queueContinue adds the outcomes whose rows stay with their workers.
func (f *flush) queueContinue(b *pgx.Batch) {
	of := f.kinds[KindContinue]
	if len(of) == 0 {
		return
	}
	n := len(of)
	steps, states, released := make([]string, n), make(documents, n), make([]bool, n)
	targets, signals := []int64{}, []int64{}
	for i, e := range of {
		steps[i], states[i], released[i] = e.Step, e.State, e.Key == ReleaseKey
		for _, id := range e.Handed {
			targets, signals = append(targets, e.ID), append(signals, id)
		}
	}
	b.Queue(f.store.sql("flush_continue"), of.ids(), of.workers(), steps, states, released, of.claims(), targets, signals).
		Query(f.continued(of))
}

// continued reads the rows that were continued; a queue is that of a row which released its key.
func (f *flush) continued(of entries) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var id int64
		var inbox, children bool
		var queue *string
		_, err := pgx.ForEachRow(rows, []any{&id, &inbox, &children, &queue}, func() error {
			if queue != nil {
				f.wake(*queue)
			}
			if err := of.commit(id, Executing); err != nil {
				return err
			}
			v := &of.find(id).verdict
			v.HasInbox, v.HasChildren = inbox, children
			return nil
		})
		return err
	}
}

// assumeContinued gives the verdict of a continuation that has committed unheard, now that it is known whose row it is. The
// worker may go on only with a row that is still its own: the reaper may have taken it while the fate was settled.
// A row that is still of the same claim was of it during the flush, too, so the guard has let it pass.
func (f *flush) assumeContinued(e *entry, o owner, mine bool) {
	if !mine {
		e.verdict.Status = Runnable // or what its new owner makes of it
		return
	}
	e.verdict.Status, e.verdict.HasInbox, e.verdict.HasChildren = Executing, o.hasInbox, o.hasChildren
	if e.Key == ReleaseKey {
		f.wake(o.queue)
	}
}
