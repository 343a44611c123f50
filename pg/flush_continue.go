package pg

import (
	"slices"

	"github.com/jackc/pgx/v5"
)

// queueContinue adds the outcomes whose rows stay with their workers.
func (f *flush) queueContinue(b *pgx.Batch) {
	of := f.kinds[KindContinue]
	if len(of) == 0 {
		return
	}
	n := len(of)
	steps, states, keys := make([]string, n), make(documents, n), make([]int16, n)
	targets, signals := []int64{}, []int64{}
	var newKeys, limits texts // most chains have neither
	var weights []float64
	for i, e := range of {
		steps[i], states[i], keys[i] = e.Step, e.State, int16(e.Key)
		if e.Key == SetKey || e.RateLimit != "" {
			if newKeys == nil {
				newKeys, limits, weights = make(texts, n), make(texts, n), slices.Repeat([]float64{1}, n)
			}
			newKeys[i], limits[i], weights[i] = e.NewKey, e.RateLimit, weight(e.Weight)
		}
		for _, id := range e.Handed {
			targets, signals = append(targets, e.ID), append(signals, id)
		}
	}
	b.Queue(f.store.sql("flush_continue"), of.ids(), of.workers(), steps, states, keys, of.claims(), targets, signals,
		newKeys, limits, weights).
		Query(f.continued(of))
}

// continued reads the rows that were continued; a queue is that of a row which gave up its key.
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
	if e.Key != KeepKey {
		f.wake(o.queue)
	}
}
