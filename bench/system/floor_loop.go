package system

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// row is a claimed row.
type row struct {
	id       int64
	step     string
	state    []byte
	eligible time.Time
	parent   *int64
}

// writer is one loop of the floor: it claims a batch, decides, and writes the outcomes of the batch and claims the next
// one in one pipelined round trip, which is one transaction.
type writer struct {
	f    *floor
	pool *pgxpool.Pool
	name string
	// from is the eligible_at of the oldest row of the last large claim: what is older was claimed by somebody, or was
	// committed late, and is found when the queue has run empty and from is zero again.
	from time.Time
}

// outcomes are a batch's, by kind.
type outcomes struct {
	done      []int64
	results   []string
	next      []int64
	steps     []string
	states    []string
	kept      []row // as their next step finds them
	park      []int64
	parked    []string
	consumed  []int64
	spawn     []int64
	joins     map[int64]int
	completed int
}

func (w *writer) run(ctx context.Context) error {
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var rows []row
	for ctx.Err() == nil {
		if len(rows) == 0 {
			if rows, err = w.write(ctx, conn, nil, true); err != nil {
				return err
			}
			if len(rows) == 0 && !w.from.IsZero() {
				w.from = time.Time{}
				continue
			}
			if len(rows) == 0 {
				select {
				case <-ctx.Done():
				case <-w.f.wake:
				case <-time.After(50 * time.Millisecond):
				}
				continue
			}
		}
		out, err := w.decide(ctx, conn, rows)
		if err != nil {
			return err
		}
		// With a full batch there is more: claim behind the flush. A small one is answered first, and kept rows go on first.
		full := len(rows) >= floorBatch/2 && len(out.kept) == 0
		if rows, err = w.write(ctx, conn, out, full); err != nil {
			return err
		}
		rows = append(rows, out.kept...)
		w.f.report(out)
	}
	return nil
}

// decide is the user code.
func (w *writer) decide(ctx context.Context, conn *pgxpool.Conn, rows []row) (*outcomes, error) {
	out := &outcomes{joins: map[int64]int{}}
	var woken []int64
	for _, r := range rows {
		switch {
		case r.step == "park":
			out.park = append(out.park, r.id)
			out.parked = append(out.parked, string(r.state))
			continue
		case r.step == "spawn":
			out.spawn = append(out.spawn, r.id)
			continue
		case r.step[0] == 'k':
			if i, _ := strconv.Atoi(r.step[1:]); i < ChainLength-1 {
				r.step = "k" + strconv.Itoa(i+1)
				out.kept = append(out.kept, r)
				continue
			}
		case r.step[0] == 'c' && r.step[1] != 'h':
			if i, _ := strconv.Atoi(r.step[1:]); i < ChainLength-1 {
				out.next = append(out.next, r.id)
				out.steps = append(out.steps, "c"+strconv.Itoa(i+1))
				out.states = append(out.states, string(r.state))
				continue
			}
		case r.step == "woken":
			woken = append(woken, r.id)
		case r.step == "child":
			out.joins[*r.parent]++
		}
		out.done = append(out.done, r.id)
		out.results = append(out.results, string(r.state))
	}
	out.completed = len(out.done)
	if len(woken) == 0 {
		return out, nil
	}
	found, err := conn.Query(ctx, floorInbox, woken)
	if err != nil {
		return nil, err
	}
	var target, id int64
	var body []byte
	_, err = pgx.ForEachRow(found, []any{&target, &id, &body}, func() error {
		out.consumed = append(out.consumed, id)
		return nil
	})
	return out, err
}

// write sends the outcomes and, if wanted, the next claim.
func (w *writer) write(ctx context.Context, conn *pgxpool.Conn, out *outcomes, claim bool) ([]row, error) {
	b := &pgx.Batch{}
	if out != nil {
		w.queue(b, out)
	}
	flushes := b.Len()
	if claim {
		b.Queue(floorClaim, w.name, floorBatch, w.from)
	}
	results := conn.SendBatch(ctx, b)
	defer results.Close()
	for range flushes {
		if _, err := results.Exec(); err != nil {
			return nil, err
		}
	}
	if !claim {
		return nil, results.Close()
	}
	got, err := results.Query()
	if err != nil {
		return nil, err
	}
	rows, err := pgx.CollectRows(got, func(c pgx.CollectableRow) (r row, err error) {
		err = c.Scan(&r.id, &r.step, &r.state, &r.eligible, &r.parent)
		return r, err
	})
	if err != nil {
		return nil, err
	}
	w.advance(rows)
	return rows, results.Close()
}

func (w *writer) queue(b *pgx.Batch, out *outcomes) {
	if len(out.done) > 0 {
		b.Queue(floorDone, out.done, out.results, w.name)
	}
	if len(out.next) > 0 {
		b.Queue(floorNext, out.next, out.steps, out.states, w.name)
	}
	if len(out.kept) > 0 {
		ids, steps, states := make([]int64, len(out.kept)), make([]string, len(out.kept)), make([]string, len(out.kept))
		for i, r := range out.kept {
			ids[i], steps[i], states[i] = r.id, r.step, string(r.state)
		}
		b.Queue(floorContinue, ids, steps, states, w.name)
	}
	if len(out.park) > 0 {
		b.Queue(floorPark, out.park, out.parked, w.name)
	}
	if len(out.consumed) > 0 {
		b.Queue(floorConsume, out.consumed)
	}
	for _, id := range out.spawn {
		b.Queue(floorSpawn, id, w.name, w.f.children, thePayload)
	}
	for parent, n := range out.joins {
		b.Queue(floorJoin, parent, n)
	}
}

func (w *writer) advance(rows []row) {
	if len(rows) < floorBatch/2 {
		return
	}
	oldest := rows[0].eligible
	for _, r := range rows {
		if r.eligible.Before(oldest) {
			oldest = r.eligible
		}
	}
	w.from = oldest
}
