package pg

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// flush is the content of one transaction: outcomes of rows that are all different.
type flush struct {
	store   *Store
	entries []*entry            // in the caller's order
	kinds   [ending + 1]entries // the same by statement, each in id order
	woken   map[string]struct{} // queues that got runnable rows
	// mark is the id of the transaction, 0 unless an outcome gives up a slot.
	mark int64
}

// entry is one outcome on its way, with what came of it.
type entry struct {
	*Outcome
	index     int // the outcome's place in the caller's batch
	verdict   Verdict
	committed bool
	cancelled bool // by a request that turned it into failed
}

// ending is the place of the outcomes Done and Failed, which share a statement.
const ending = KindDone

func newFlush(s *Store, batch []*entry) *flush {
	f := &flush{store: s, entries: batch, woken: map[string]struct{}{}}
	for _, e := range batch {
		kind := min(e.Kind, ending)
		f.kinds[kind] = append(f.kinds[kind], e)
	}
	for _, of := range f.kinds {
		slices.SortFunc(of, func(a, b *entry) int { return cmp.Compare(b.ID, a.ID) })
	}
	return f
}

// send runs the whole flush as one pipeline: one round trip, one transaction. It returns nil only when it has committed.
func (f *flush) send(ctx context.Context, conn DB, name string, seq, next int64) error {
	clear(f.woken)
	f.mark = 0
	for _, e := range f.entries {
		e.committed, e.cancelled, e.verdict = false, false, Verdict{ID: e.ID, Fate: Stale}
	}
	var b pgx.Batch
	f.store.queueSettings(&b)
	b.Queue(f.store.sql("flush_fence"), name, seq, next)
	f.queueOutcomes(&b)
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	f.marked()
	return nil
}

// marked puts the transaction's id to the outcomes that have given up a slot.
func (f *flush) marked() {
	for _, e := range f.entries {
		if e.committed && e.SlotKey != "" {
			e.verdict.Mark = uint64(f.mark)
		}
	}
}

// queueMark asks for the transaction's id, if a slot is given up: by it the limiter tells whether a count of the slots that
// are taken has seen the end of this holder already.
func (f *flush) queueMark(b *pgx.Batch) {
	for _, e := range f.entries {
		if e.SlotKey != "" && (e.Kind != KindContinue || e.Key != KeepKey) {
			b.Queue(f.store.sql("flush_mark")).QueryRow(func(row pgx.Row) error { return row.Scan(&f.mark) })
			return
		}
	}
}

// queueOutcomes adds everything that the outcomes write.
func (f *flush) queueOutcomes(b *pgx.Batch) {
	f.queueLock(b)
	f.queueNext(b)
	f.queueRetry(b)
	f.queueAwait(b)
	f.queueChildren(b)
	f.queueContinue(b)
	f.queueEnd(b)
	f.queueTraces(b)
	f.queueHistory(b)
	f.queueConsume(b)
	f.queueEndRiders(b)
	f.queueMark(b)
}

// queueSettings makes the settings that sessions do not have.
func (s *Store) queueSettings(b *pgx.Batch) {
	if s.sessionless {
		b.Queue(s.sql("session_settings"), flushSettings, valuesOf(flushSettings))
	}
}

// queueLock takes the rows of the flush in one order, where its statements would not: a single statement does that by
// itself, because its nested loop is driven by the array, and parents come last, which is right while they are older than
// all rows of the flush.
func (f *flush) queueLock(b *pgx.Batch) {
	several, oldest, youngestParent := 0, int64(math.MaxInt64), int64(0)
	for _, of := range f.kinds {
		if len(of) > 0 {
			several++
			oldest = min(oldest, of[len(of)-1].ID)
		}
	}
	parents := []int64{}
	for _, e := range f.kinds[ending] {
		if e.ParentID != 0 && (len(parents) == 0 || parents[len(parents)-1] != e.ParentID) {
			parents = append(parents, e.ParentID)
			youngestParent = max(youngestParent, e.ParentID)
		}
	}
	if several < 2 && youngestParent < oldest {
		return
	}
	all := make(entries, len(f.entries))
	copy(all, f.entries)
	b.Queue(f.store.sql("flush_lock"), all.ids(), all.workers(), all.claims(), parents)
}

func (f *flush) queueNext(b *pgx.Batch) {
	of := f.kinds[KindNext]
	if len(of) == 0 {
		return
	}
	n := len(of)
	steps, states, delays := make([]string, n), make(documents, n), make([]int64, n)
	limits, weights := make(texts, n), make([]float64, n)
	keys, newKeys := make([]int16, n), make(texts, n)
	for i, e := range of {
		steps[i], states[i], delays[i] = e.Step, e.State, micros(e.Delay)
		limits[i], weights[i] = e.RateLimit, weight(e.Weight)
		keys[i], newKeys[i] = int16(e.Key), e.NewKey
	}
	b.Queue(f.store.sql("flush_next"), of.ids(), of.workers(), steps, states, delays, limits, weights, keys, newKeys, of.claims()).
		Query(f.requeued(of))
}

func (f *flush) queueRetry(b *pgx.Batch) {
	of := f.kinds[KindRetry]
	if len(of) == 0 {
		return
	}
	n := len(of)
	states, delays, counted, errs := make(documents, n), make([]int64, n), make([]bool, n), make(texts, n)
	for i, e := range of {
		states[i], delays[i], counted[i], errs[i] = e.State, micros(e.Delay), !e.Uncounted, e.Error
	}
	b.Queue(f.store.sql("flush_retry"), of.ids(), of.workers(), states, delays, counted, errs, of.claims()).Query(f.requeued(of))
}

func (f *flush) queueAwait(b *pgx.Batch) {
	of := f.kinds[KindAwait]
	if len(of) == 0 {
		return
	}
	n := len(of)
	steps, states, awaits, timeouts := make([]string, n), make(documents, n), make([]string, n), make(spans, n)
	handed := make(texts, n)
	for i, e := range of {
		steps[i], states[i], awaits[i], timeouts[i] = e.Step, e.State, nameArray(e.Awaits), e.Timeout
		handed[i] = idArray(e.Handed)
	}
	b.Queue(f.store.sql("flush_await"), of.ids(), of.workers(), steps, states, awaits, timeouts, of.claims()).
		Query(f.parked(of, AwaitingSignal))
	b.Queue(f.store.sql("flush_recheck"), of.ids(), handed).Query(f.rechecked(of))
}

func (f *flush) queueChildren(b *pgx.Batch) {
	of := f.kinds[KindChildren]
	if len(of) == 0 {
		return
	}
	steps, states := make([]string, len(of)), make(documents, len(of))
	for i, e := range of {
		steps[i], states[i] = e.Step, e.State
	}
	b.Queue(f.store.sql("flush_children"), of.ids(), of.workers(), steps, states, of.claims()).Query(f.parked(of, AwaitingChildren))
	b.Queue(f.store.sql("flush_spawn"), append([]any{of.ids(), f.store.interoperable}, of.offspring()...)...).
		Query(f.spawned(of))
}

func (f *flush) queueEnd(b *pgx.Batch) {
	of := f.kinds[ending]
	if len(of) == 0 {
		return
	}
	n := len(of)
	failed, results, errs, known := make([]bool, n), make(documents, n), make(texts, n), make([]bool, n)
	for i, e := range of {
		known[i] = e.HasInbox
		if failed[i] = e.Kind == KindFailed; failed[i] {
			errs[i] = e.Error
		} else {
			results[i] = e.Result
		}
	}
	b.Queue(f.store.sql("flush_end"), of.ids(), of.workers(), failed, results, errs, known, of.claims()).Query(f.ended(of))
}

// queueConsume deletes what the steps that made progress were handed.
func (f *flush) queueConsume(b *pgx.Batch) {
	var targets, signals []int64
	for _, kind := range []Kind{KindNext, KindChildren} {
		for _, e := range f.kinds[kind] {
			for _, id := range e.Handed {
				targets, signals = append(targets, e.ID), append(signals, id)
			}
		}
	}
	if len(targets) > 0 {
		b.Queue(f.store.sql("flush_consume"), targets, signals)
	}
}

// queueEndRiders ends what hangs on the rows that end: their inboxes, their parents' wait.
func (f *flush) queueEndRiders(b *pgx.Batch) {
	var inboxes, children []int64
	for _, e := range f.kinds[ending] {
		if e.HasInbox {
			inboxes = append(inboxes, e.ID)
		}
		if e.ParentID != 0 {
			children = append(children, e.ID)
		}
	}
	if len(inboxes) > 0 {
		b.Queue(f.store.sql("flush_inbox"), inboxes, false)
	}
	if len(inboxes) < len(f.kinds[ending]) {
		b.Queue(f.store.sql("flush_inbox_late"))
	}
	if len(children) > 0 {
		b.Queue(f.store.sql("flush_join"), children, false).Query(func(rows pgx.Rows) error {
			queues, err := pgx.CollectRows(rows, pgx.RowTo[string])
			f.wake(queues...)
			return err
		})
	}
}

func (f *flush) wake(queues ...string) {
	for _, q := range queues {
		f.woken[q] = struct{}{}
	}
}

// requeued reads id and queue of rows that became runnable; a null queue is one that is not eligible yet.
func (f *flush) requeued(of entries) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var id int64
		var queue *string
		_, err := pgx.ForEachRow(rows, []any{&id, &queue}, func() error {
			if queue != nil {
				f.wake(*queue)
			}
			return of.commit(id, Runnable)
		})
		return err
	}
}

// rechecked reads id and queue of rows for which an awaited signal was there; a null queue is one that has to stay parked
// nonetheless.
func (f *flush) rechecked(of entries) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var id int64
		var queue *string
		_, err := pgx.ForEachRow(rows, []any{&id, &queue}, func() error {
			if queue == nil {
				return nil
			}
			f.wake(*queue)
			return of.commit(id, Runnable)
		})
		return err
	}
}

func (f *flush) parked(of entries, status Status) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var id int64
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error { return of.commit(id, status) })
		return err
	}
}

// spawned reads one row a parent, and one with id 0 for each queue that got children.
func (f *flush) spawned(of entries) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var id int64
		var n int
		var runnable bool
		var queue string
		_, err := pgx.ForEachRow(rows, []any{&id, &n, &runnable, &queue}, func() error {
			if runnable {
				f.wake(queue)
			}
			if id == 0 {
				return nil
			}
			status := AwaitingChildren
			if runnable {
				status = Runnable
			}
			if err := of.commit(id, status); err != nil {
				return err
			}
			of.find(id).verdict.Children = n
			return nil
		})
		return err
	}
}

func (f *flush) ended(of entries) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var id int64
		var cancelled int
		_, err := pgx.ForEachRow(rows, []any{&id, &cancelled, nil}, func() error {
			e := of.find(id)
			if e == nil {
				return of.commit(id, Failed)
			}
			status := Done
			if e.Kind == KindFailed || cancelled != 0 {
				status = Failed
			}
			e.cancelled = cancelled != 0
			return of.commit(id, status)
		})
		return err
	}
}

// entries are outcomes of one statement, in descending id order (but for queueLock's, whose statement sorts).
type entries []*entry

// find returns the entry of a row, or nil.
func (of entries) find(id int64) *entry {
	i, ok := slices.BinarySearchFunc(of, id, func(e *entry, id int64) int { return cmp.Compare(id, e.ID) })
	if !ok {
		return nil
	}
	return of[i]
}

// commit notes that the row was written.
func (of entries) commit(id int64, status Status) error {
	e := of.find(id)
	if e == nil {
		return fmt.Errorf("pg: a flush answered for row %d, which it was not about", id)
	}
	e.committed = true
	e.verdict = Verdict{ID: id, Fate: Committed, Status: status, Children: e.verdict.Children}
	if e.cancelled {
		e.verdict.Fate = Cancelled
	}
	return nil
}

func (of entries) ids() []int64 {
	ids := make([]int64, len(of))
	for i, e := range of {
		ids[i] = e.ID
	}
	return ids
}

// workers returns the owners; a single element when all are the same, which the statements take for all.
func (of entries) workers() []string {
	workers := make([]string, 0, len(of))
	same := true
	for _, e := range of {
		workers = append(workers, e.Worker)
		same = same && e.Worker == workers[0]
	}
	if same && len(of) > 0 {
		return workers[:1]
	}
	return workers
}

// claims returns the numbers of the claims; those that are not known stay null.
func (of entries) claims() numbers {
	claims := make(numbers, len(of))
	for i, e := range of {
		claims[i] = int32(e.Claim)
	}
	return claims
}

// offspring returns the arrays of all children, as flush_spawn takes them from $3 on.
func (of entries) offspring() []any {
	n := 0
	for _, e := range of {
		n += len(e.Children)
	}
	parents, machines, versions, steps := make([]int64, 0, n), make([]string, n), make([]int32, n), make([]string, n)
	states, queues, priorities, keys := make(documents, n), make([]string, n), make([]int16, n), make(texts, n)
	limits, weights, corrs, scopes := make(texts, n), make([]float64, n), make(texts, n), make([]string, n)
	at, delays := make(times, n), make([]int64, n)
	for _, e := range of {
		for c := range e.Children {
			child, i := &e.Children[c], len(parents)
			parents = append(parents, e.ID)
			machines[i], versions[i], steps[i], states[i] = child.Machine, int32(child.Version), child.Step, child.State
			if child.State == nil {
				states[i] = []byte("{}")
			}
			queues[i], priorities[i], keys[i] = child.Queue, child.Priority, child.ConcurrencyKey
			limits[i], weights[i] = child.RateLimit, weight(child.Weight)
			if corrs[i], scopes[i] = child.CorrelationKey, "{}"; len(child.CorrelationScope) > 0 {
				scopes[i] = nameArray(child.CorrelationScope)
			}
			at[i], delays[i] = child.EligibleAt, micros(max(child.Delay, 0))
		}
	}
	return []any{parents, machines, versions, steps, states, queues, priorities, keys, limits, weights, corrs, scopes, at, delays, of.childTraces(n)}
}

func weight(w float64) float64 {
	if w == 0 {
		return 1
	}
	return w
}

// span is how long to pause after a failed try, a little longer each time.
func span(attempt int) time.Duration {
	return min(20*time.Millisecond<<min(attempt, 6), time.Second)
}
