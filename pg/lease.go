package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Heartbeat extends the leases of the rows that the worker owns, from the database's now(). It answers each id, in order.
// It waits for nobody: a row that somebody holds just now is Locked.
func (s *Store) Heartbeat(ctx context.Context, worker string, lease time.Duration, ids []int64) ([]Beat, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	found := make(map[int64]Beat, len(ids))
	err := onFreshPlan(ctx, s.db(), func(db DB) error {
		rows, err := db.Query(ctx, s.sql("heartbeat"), worker, micros(lease), ids)
		if err != nil {
			return err
		}
		var id int64
		var extended bool
		var reason *string
		_, err = pgx.ForEachRow(rows, []any{&id, &extended, &reason}, func() error {
			switch {
			case extended:
				found[id] = Beat{ID: id, State: Extended, CancelReason: reason}
			case found[id].ID == 0:
				found[id] = Beat{ID: id, State: Locked, CancelReason: reason}
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pg: beat for %d rows of %s: %w", len(ids), worker, err)
	}
	beats := make([]Beat, len(ids))
	for i, id := range ids {
		beat, ok := found[id]
		if !ok {
			beat = Beat{ID: id, State: Lost}
		}
		beats[i] = beat
	}
	return beats, nil
}

// ExtendOne extends one lease, waiting for whoever holds the row, though no longer than the session's lock_timeout: then
// the answer is Locked again.
func (s *Store) ExtendOne(ctx context.Context, worker string, lease time.Duration, id int64) (Beat, error) {
	beat := Beat{ID: id, State: Extended}
	err := onFreshPlan(ctx, s.db(), func(db DB) error {
		var b pgx.Batch
		s.queueSettings(&b)
		b.Queue(s.sql("extend_one"), worker, micros(lease), id).QueryRow(func(row pgx.Row) error {
			return row.Scan(&beat.CancelReason)
		})
		return db.SendBatch(ctx, &b).Close()
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Beat{ID: id, State: Lost}, nil
	case isState(err, "55P03"):
		return Beat{ID: id, State: Locked}, nil
	case err != nil:
		return Beat{}, fmt.Errorf("pg: extend the lease of row %d: %w", id, err)
	}
	return beat, nil
}

// ErrNotReleased says that some rows could not be given back just now; they still belong to the worker.
var ErrNotReleased = errors.New("pg: somebody holds rows that are to be released; try again")

// ClaimRef names one claim of a row, by its number: Claimed.ID and Claimed.Claim.
type ClaimRef struct {
	ID    int64
	Claim int
}

// Release gives claimed rows back untouched: attempt and eligible_at as they were. Rows that the worker does not own, or owns by
// another claim, are left alone. It waits for nobody: when somebody holds some of the rows just now, the others are given back and the error
// wraps ErrNotReleased. It returns of how many of those that it gave back a cancel was requested: the next claim ends them, whatever
// limit or key they have.
func (s *Store) Release(ctx context.Context, worker string, claims []ClaimRef) (ending int, err error) {
	r, err := s.release(ctx, worker, claims)
	if err != nil {
		return 0, fmt.Errorf("pg: release %d rows of %s: %w", len(claims), worker, err)
	}
	if r.kept > 0 {
		return r.ending, fmt.Errorf("%w (%d of %d rows of %s)", ErrNotReleased, r.kept, len(claims), worker)
	}
	return r.ending, nil
}

// releasedRows counts rows: given back, of those with a requested cancel, and not given back.
type releasedRows struct{ released, ending, kept int }

func (s *Store) release(ctx context.Context, worker string, claims []ClaimRef) (r releasedRows, err error) {
	if len(claims) == 0 {
		return r, nil
	}
	ids, numbers := make([]int64, len(claims)), make([]int32, len(claims))
	for i, c := range claims {
		ids[i], numbers[i] = c.ID, int32(c.Claim)
	}
	var slots slots
	err = atomically(ctx, s.db(), func(db DB) error {
		return db.QueryRow(ctx, s.sql("release"), worker, ids, numbers).Scan(slots.after(&r.released, &r.ending, &r.kept)...)
	})
	s.credit(slots, err)
	return r, err
}

// ReleaseUnheld gives back every row that carries the worker's name but is not among those it holds: claims whose answer
// was lost. It returns how many. Held must include what waits for a flush, and the worker must have no claim under way.
func (s *Store) ReleaseUnheld(ctx context.Context, worker string, held []int64) (int, error) {
	if held == nil {
		held = []int64{}
	}
	var unheld []ClaimRef
	err := onFreshPlan(ctx, s.db(), func(db DB) error {
		rows, err := db.Query(ctx, s.sql("unheld"), worker, held)
		if err != nil {
			return err
		}
		unheld, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ClaimRef])
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("pg: look for rows that %s does not know of: %w", worker, err)
	}
	r, err := s.release(ctx, worker, unheld)
	if err != nil {
		return 0, fmt.Errorf("pg: release %d rows that %s does not know of: %w", len(unheld), worker, err)
	}
	if r.kept > 0 {
		return r.released, fmt.Errorf("%w (%d rows that %s does not know of)", ErrNotReleased, r.kept, worker)
	}
	return r.released, nil
}

// ReapResult is what a sweep made runnable.
type ReapResult struct {
	Rows   int      // if as many as the limit: sweep again at once
	Queues []string // where they are, each once
	// Next is from where on the next sweep need look, but for rows that this one had to leave: they were locked, wait for their
	// correlation key, or became due before that by a transaction that is not yet committed. A sweep with a limit of 0 has it, too.
	Next time.Time
}

// ReapLeases gives back up to limit rows whose lease has expired, with attempt + 1, and counts the crash. It looks at leases
// that expired at from or later: the Next of a sweep before, or zero for all of them. Any number of nodes may do it at once.
func (s *Store) ReapLeases(ctx context.Context, from time.Time, limit int) (ReapResult, error) {
	var slots slots
	r, err := s.sweep(ctx, "reap", from, limit, &slots)
	s.credit(slots, err)
	if err != nil {
		return r, fmt.Errorf("pg: reap expired leases: %w", err)
	}
	return r, nil
}

// WakeDeadlines wakes up to limit parked rows whose await has timed out, at from or later; see ReapLeases. Any number of nodes
// may do it at once.
func (s *Store) WakeDeadlines(ctx context.Context, from time.Time, limit int) (ReapResult, error) {
	r, err := s.sweep(ctx, "wake", from, limit, nil)
	if err != nil {
		return r, fmt.Errorf("pg: wake timed-out awaits: %w", err)
	}
	return r, nil
}

// sweep runs a statement that returns a number of rows, their queues and where to go on, and the slots they held if held is not nil.
// Two rows of the original engine that enter one correlation scope in one sweep are told apart by taking fewer.
func (s *Store) sweep(ctx context.Context, name string, from time.Time, limit int, held *slots) (r ReapResult, err error) {
	var since, next *time.Time
	if !from.IsZero() {
		since = &from
	}
	into := []any{&r.Rows, &r.Queues, &next}
	if held != nil {
		into = held.after(into...)
	}
	for {
		err = onFreshPlan(ctx, s.db(), func(db DB) error {
			return db.QueryRow(ctx, s.sql(name), limit, since).Scan(into...)
		})
		if next != nil {
			r.Next = *next
		}
		if !isState(err, "23505") || limit <= 1 {
			return r, err
		}
		limit = max(limit/8, 1)
	}
}
