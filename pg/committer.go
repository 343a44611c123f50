package pg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrFateUnknown says that the connection was lost during a flush, and that ctx ended before it could be found out
// whether the flush had committed.
var ErrFateUnknown = errors.New("pg: it is not known whether the flush was committed")

// maxFenced bounds how often a flush that somebody else has fenced takes its name back.
const maxFenced = 3

// Committer writes outcomes, many in one transaction. It is safe for concurrent use, but its flushes run one after the
// other: two writers take two Committers.
type Committer struct {
	store *Store
	name  string

	mu sync.Mutex
	// seq is what the flusher's row carries; 0 = not known, the row is to be opened first.
	seq int64
}

// openings is how far apart the numbers of two flushes are. In between, openings of the row are counted, so that one that
// comes late (its answer was lost, too) fences what is on its way but does not hide the flush that came last.
const openings = 1 << 10 // as fate_fence has it

// following is the number of the flush after the one that seq belongs to.
func following(seq int64) int64 { return (seq/openings + 1) * openings }

// NewCommitter returns a Committer with a row of its own in gen_durable_flushers, which is created by its first flush.
// The name must be unique among all that are alive, in all processes: contain the node's incarnation in it.
func (s *Store) NewCommitter(name string) *Committer { return &Committer{store: s, name: name} }

// Flush commits the outcomes in one transaction and one round trip, and answers each of them. A row that its worker no
// longer owns is Stale, and nothing of its outcome is written; a row whose cancel was requested is failed with the
// reason instead (that takes two more round trips unless the outcome ends the row anyway).
//
// When the connection is lost, Flush itself finds out what became of the transaction and sends it again if it did not
// commit. An error means that nothing was committed (Classify it), except one that wraps ErrFateUnknown: ctx ended first.
//
// A second outcome of the same row and worker in a batch is Stale.
func (c *Committer) Flush(ctx context.Context, outcomes []Outcome) (Flushed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	verdicts := make([]Verdict, len(outcomes))
	batch, err := c.distinct(ctx, outcomes, verdicts)
	if err != nil {
		return Flushed{}, fmt.Errorf("pg: tell the owners of a row apart: %w", err)
	}
	if len(batch) == 0 {
		return Flushed{Verdicts: verdicts}, nil
	}
	f := newFlush(c.store, batch)
	if err := c.commit(ctx, f); err != nil {
		return Flushed{}, err
	}
	c.endCancelled(ctx, f)
	for _, e := range f.entries {
		verdicts[e.index] = e.verdict
	}
	return Flushed{Verdicts: verdicts, Woken: slices.Sorted(maps.Keys(f.woken))}, nil
}

// distinct returns the outcomes as entries in which each row occurs once: the riders know rows, not owners, so the outcome
// of a worker that lost its row must not share a transaction with one of the new owner. Which of them is alive costs a
// look; who does not own the row now has lost it for good. The others get their verdicts here.
func (c *Committer) distinct(ctx context.Context, outcomes []Outcome, verdicts []Verdict) ([]*entry, error) {
	all := make([]entry, len(outcomes))
	batch := make([]*entry, len(outcomes))
	times := make(map[int64]int, len(outcomes))
	for i := range outcomes {
		all[i] = entry{Outcome: &outcomes[i], index: i}
		batch[i] = &all[i]
		times[outcomes[i].ID]++
	}
	if len(times) == len(outcomes) {
		return batch, nil
	}
	var repeated entries
	for _, e := range batch {
		if times[e.ID] > 1 {
			repeated = append(repeated, e)
		}
	}
	owners := map[int64]owner{}
	if err := c.owned(ctx, repeated, func(o owner) { owners[o.id] = o }); err != nil {
		return nil, err
	}
	alive := batch[:0]
	for _, e := range batch {
		if times[e.ID] > 1 {
			if !owners[e.ID].is(e) {
				verdicts[e.index] = Verdict{ID: e.ID, Fate: Stale}
				continue
			}
			delete(owners, e.ID) // a second outcome of the same owner is one too many
		}
		alive = append(alive, e)
	}
	return alive, nil
}

// commit sends the flush until its fate is known and good, or it has failed for good.
func (c *Committer) commit(ctx context.Context, f *flush) error {
	for fenced, lost := 0, 0; ; {
		if err := c.open(ctx); err != nil {
			return fmt.Errorf("pg: open flusher %s: %w", c.name, err)
		}
		sent, cause := c.try(ctx, f, lost)
		switch {
		case cause == nil:
			c.seq = following(c.seq)
			return nil
		case isState(cause, "22012") && fenced < maxFenced: // only the fence divides
			c.seq = 0
			fenced++
			continue
		case !sent || isAborted(cause):
			return fmt.Errorf("pg: flush %d outcomes: %w", len(f.entries), cause)
		}
		committed, err := c.settle(ctx, cause)
		if err != nil {
			return err
		}
		if committed {
			return c.assume(ctx, f)
		}
		if Classify(cause) != Connection { // it was not the connection's fault, and the same again would end the same
			return fmt.Errorf("pg: flush %d outcomes (nothing was committed): %w", len(f.entries), cause)
		}
		if err := pause(ctx, lost); err != nil {
			return fmt.Errorf("pg: flush %d outcomes (nothing was committed): %w", len(f.entries), err)
		}
		lost++
	}
}

// open makes sure of the flusher's row. Taking it over fences what a flush of unknown fate still has on its way.
func (c *Committer) open(ctx context.Context) error {
	if c.seq != 0 {
		return nil
	}
	return within(ctx, 0, func(ctx context.Context) error {
		return onFreshPlan(ctx, c.store.db(), func(db DB) error {
			return db.QueryRow(ctx, c.store.sql("flusher_open"), c.name).Scan(&c.seq)
		})
	})
}

// try sends the transaction once, with a patience that grows with its size and with each try that was lost.
func (c *Committer) try(ctx context.Context, f *flush, lost int) (sent bool, err error) {
	size := len(f.entries)
	for _, e := range f.entries {
		size += len(e.Children)
	}
	extra := time.Duration(size)*time.Millisecond + time.Duration(min(lost, 10))*30*time.Second
	err = within(ctx, extra, func(ctx context.Context) error {
		sent, err = c.send(ctx, f)
		return err
	})
	return sent, err
}

// send tries the transaction once; sent says that something may have reached the server.
func (c *Committer) send(ctx context.Context, f *flush) (sent bool, err error) {
	if c.store.pool == nil {
		return false, f.send(ctx, c.store.db(), c.name, c.seq, following(c.seq))
	}
	conn, err := c.store.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	err = f.send(ctx, conn.Conn(), c.name, c.seq, following(c.seq))
	if err != nil && isStalePlan(err) { // an error of the server: the transaction is rolled back
		if err := conn.Conn().DeallocateAll(ctx); err != nil {
			return false, fmt.Errorf("drop stale statements: %w", err)
		}
		err = f.send(ctx, conn.Conn(), c.name, c.seq, following(c.seq))
	}
	return err == nil || !pgconn.SafeToRetry(err), err
}

// settle finds out whether a flush whose answer was lost has committed. If not, it never will: its number is fenced.
func (c *Committer) settle(ctx context.Context, cause error) (committed bool, err error) {
	attempt := following(c.seq)
	fence := following(attempt)
	for try := 0; ; try++ {
		fenced, exists, err := c.fence(ctx, attempt, fence)
		switch {
		case err == nil && fenced:
			c.seq = fence
			return false, nil
		case err == nil && exists:
			c.seq = attempt
			return true, nil
		case err == nil:
			// Collected as long abandoned: a flush that has been on its way for that long is none.
			c.seq = 0
			return false, nil
		}
		if waitErr := pause(ctx, try); waitErr != nil {
			c.seq = 0
			return false, fmt.Errorf("%w: %w (then, when asking: %w)", ErrFateUnknown, cause, err)
		}
	}
}

// fence is one try to settle. Repeating it gives the same answer, so it does not matter which of the tries was heard.
func (c *Committer) fence(ctx context.Context, attempt, fence int64) (fenced, exists bool, err error) {
	err = within(ctx, 0, func(ctx context.Context) error {
		return onFreshPlan(ctx, c.store.db(), func(db DB) error {
			tag, err := db.Exec(ctx, c.store.sql("fate_fence"), c.name, attempt, fence)
			if err != nil || tag.RowsAffected() > 0 {
				fenced = err == nil
				return err
			}
			var n int
			err = db.QueryRow(ctx, c.store.sql("fate_exists"), c.name).Scan(&n)
			exists = n > 0
			return err
		})
	})
	return fenced, exists, err
}

// assume gives the verdicts of a flush that has committed without anybody reading its answers.
func (c *Committer) assume(ctx context.Context, f *flush) error {
	clear(f.woken)
	ids := make([]int64, 0, 2*len(f.entries))
	for _, e := range f.entries {
		e.committed, e.cancelled = true, false
		e.verdict = Verdict{ID: e.ID, Fate: Committed, Status: asked(e.Kind), Children: len(e.Children), Assumed: true}
		if e.Kind == KindChildren && len(e.Children) == 0 {
			e.verdict.Status = Runnable
		}
		ids = append(ids, e.ID)
		if e.ParentID != 0 {
			ids = append(ids, e.ParentID)
		}
		for i := range e.Children {
			f.wake(e.Children[i].Queue)
		}
	}
	// What a cancel request kept out of the transaction still belongs to its worker: endCancelled looks at it.
	for try := 0; ; try++ {
		err := c.lookBack(ctx, f, ids)
		if err == nil {
			return nil
		}
		if pause(ctx, try) != nil {
			return fmt.Errorf("%w: it was, but not which queues have work: %w", ErrFateUnknown, err)
		}
	}
}

// lookBack finds the queues to poke, and the outcomes that a cancel request kept out.
func (c *Committer) lookBack(ctx context.Context, f *flush, ids []int64) error {
	owners := map[int64]owner{}
	if err := c.owned(ctx, f.entries, func(o owner) { owners[o.id] = o }); err != nil {
		return err
	}
	for _, e := range f.entries {
		o := owners[e.ID]
		mine := o.is(e)
		if mine && o.reason != nil {
			e.committed = false
		}
		if e.Kind == KindContinue {
			f.assumeContinued(e, o, mine)
		}
	}
	var queues []string
	err := within(ctx, 0, func(ctx context.Context) error {
		return onFreshPlan(ctx, c.store.db(), func(db DB) error {
			return db.QueryRow(ctx, c.store.sql("flush_queues"), ids).Scan(&queues)
		})
	})
	f.wake(queues...)
	return err
}

// endCancelled looks at the outcomes that were refused: those whose cancel was requested end their rows now. If that
// fails they are answered as Stale, because the flush itself has committed and its other answers must not be lost: such a
// row keeps its request, and whoever claims it after its lease ends it.
func (c *Committer) endCancelled(ctx context.Context, f *flush) {
	var refused entries
	for _, e := range f.entries {
		if !e.committed && e.Kind < ending {
			refused = append(refused, e)
		}
	}
	if len(refused) == 0 {
		return
	}
	owners := map[int64]owner{}
	err := c.owned(ctx, refused, func(o owner) { owners[o.id] = o })
	var ends []*entry
	for _, e := range refused {
		if o := owners[e.ID]; o.is(e) && o.reason != nil {
			ends = append(ends, &entry{Outcome: &Outcome{
				ID: e.ID, Worker: e.Worker, Claim: e.Claim, Kind: KindFailed, Error: *o.reason, ParentID: e.ParentID, HasInbox: true,
				SlotKey: e.SlotKey, SlotShard: e.SlotShard,
				TraceContext: e.TraceContext, Record: e.Record,
			}})
		}
	}
	cancels := newFlush(c.store, ends)
	if err == nil && len(ends) > 0 {
		err = c.commit(ctx, cancels)
	}
	for _, e := range refused {
		e.verdict = Verdict{ID: e.ID, Fate: Stale}
		if end := cancels.kinds[ending].find(e.ID); err == nil && end != nil {
			e.verdict = end.verdict
			if end.verdict.Assumed {
				e.verdict.Fate = Cancelled
			}
		}
	}
	maps.Copy(f.woken, cancels.woken)
}

// owner is who owns a row now, as far as it is one of those asked about.
type owner struct {
	id     int64
	worker string
	claim  int
	reason *string // of a requested cancel, or nil

	queue                 string
	hasInbox, hasChildren bool
}

// is reports whether the outcome is the owner's.
func (o owner) is(e *entry) bool {
	return o.id == e.ID && o.worker == e.Worker && (e.Claim == 0 || o.claim == e.Claim)
}

// owned calls fn for the rows that still belong to their workers.
func (c *Committer) owned(ctx context.Context, of entries, fn func(owner owner)) error {
	return within(ctx, 0, func(ctx context.Context) error {
		return onFreshPlan(ctx, c.store.db(), func(db DB) error {
			rows, err := db.Query(ctx, c.store.sql("flush_missing"), of.ids(), of.workers())
			if err != nil {
				return err
			}
			var o owner
			_, err = pgx.ForEachRow(rows, []any{&o.id, &o.worker, &o.claim, &o.reason, &o.queue, &o.hasInbox, &o.hasChildren}, func() error {
				fn(o)
				return nil
			})
			return err
		})
	})
}

// asked is the status that an outcome asks for.
func asked(k Kind) Status {
	switch k {
	case KindAwait:
		return AwaitingSignal
	case KindContinue:
		return Executing
	case KindChildren:
		return AwaitingChildren
	case KindDone:
		return Done
	case KindFailed:
		return Failed
	}
	return Runnable
}

// isAborted reports whether the server itself said that the transaction failed. A FATAL error does not say that: a
// shutdown may meet a transaction that has committed already.
func isAborted(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.SeverityUnlocalized == "ERROR"
}

func isState(err error, code string) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == code
}

// pause waits a little longer with each try, or until ctx ends.
func pause(ctx context.Context, try int) error {
	timer := time.NewTimer(span(try))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
