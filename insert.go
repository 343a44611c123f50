package gendurable

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/pg"
)

// Insert commits a new instance and returns its id. When the correlation key is occupied, the error is
// ErrDuplicate and the id is the occupant's. A repeated RequestID returns the first id and no error.
func (c *Client) Insert(ctx context.Context, inst fsm.Instance, opts ...fsm.InsertOption) (ID, error) {
	return c.insertOne(ctx, c.pool, inst, opts, c.announceInserts)
}

// InsertTx is Insert in the caller's transaction: the instance exists if and when the transaction commits. Run it
// in Tx, or call Poke after the commit; otherwise the poll finds the work. Until the commit, other inserts
// of the same correlation key wait.
func (c *Client) InsertTx(ctx context.Context, tx pgx.Tx, inst fsm.Instance, opts ...fsm.InsertOption) (ID, error) {
	return c.insertOne(ctx, tx, inst, opts, announceOnCommit(tx))
}

// InsertResult answers one instance of InsertMany.
type InsertResult = instance.InsertResult

// InsertMany commits any number of instances in one statement and answers in order. An occupied correlation
// key is an answer, not an error; an invalid instance fails the whole call before anything is sent.
func (c *Client) InsertMany(ctx context.Context, insts []fsm.Instance) ([]InsertResult, error) {
	return c.insertMany(ctx, c.pool, insts, c.announceInserts)
}

// InsertManyTx is InsertMany in the caller's transaction, as InsertTx is to Insert.
func (c *Client) InsertManyTx(ctx context.Context, tx pgx.Tx, insts []fsm.Instance) ([]InsertResult, error) {
	return c.insertMany(ctx, tx, insts, announceOnCommit(tx))
}

func (c *Client) insertOne(ctx context.Context, db pg.DB, inst fsm.Instance, opts []fsm.InsertOption,
	announce func([]pg.Insertion, []pg.Inserted)) (ID, error) {
	if len(opts) > 0 {
		inst = inst.With(opts...)
	}
	in, err := c.insertion(inst)
	if err != nil {
		return 0, err
	}
	call := c.tracer.Insert(ctx, in.Machine, 1)
	in.TraceContext = call.TraceContext()
	rows := []pg.Insertion{in}
	answers, err := c.store.Insert(ctx, db, rows)
	if err == nil {
		call.Inserted(answers[0].ID)
	}
	call.End(err)
	if err != nil {
		return 0, fmt.Errorf("gendurable: insert %s: %w", in.Machine, err)
	}
	announce(rows, answers)
	id := ID(answers[0].ID)
	if answers[0].Duplicate {
		return id, &DuplicateError{Key: in.CorrelationKey, Occupant: id}
	}
	return id, nil
}

func (c *Client) insertMany(ctx context.Context, db pg.DB, insts []fsm.Instance,
	announce func([]pg.Insertion, []pg.Inserted)) ([]InsertResult, error) {
	rows := make([]pg.Insertion, len(insts))
	for i, inst := range insts {
		in, err := c.insertion(inst)
		if err != nil {
			return nil, fmt.Errorf("instance %d of %d: %w", i, len(insts), err)
		}
		rows[i] = in
	}
	if len(rows) == 0 {
		return nil, nil
	}
	call := c.traceInserts(ctx, rows)
	answers, err := c.store.Insert(ctx, db, rows)
	call.End(err)
	if err != nil {
		return nil, fmt.Errorf("gendurable: insert %d instances: %w", len(rows), err)
	}
	announce(rows, answers)
	results := make([]InsertResult, len(answers))
	for i, a := range answers {
		results[i] = InsertResult{ID: ID(a.ID), Duplicate: a.Duplicate, Repeated: a.Repeated}
	}
	return results, nil
}

// insertion validates and encodes an instance, and refuses what this process does not know.
func (c *Client) insertion(inst fsm.Instance) (pg.Insertion, error) {
	in, err := inst.Insertion(c.limits)
	if err != nil {
		return pg.Insertion{}, err
	}
	return pg.Insertion(in), c.registry.check(in)
}

// announceInserts pokes the queues that got work, at the time it becomes eligible.
func (c *Client) announceInserts(rows []pg.Insertion, answers []pg.Inserted) {
	for _, w := range wakesOf(rows, answers) {
		c.announce([]string{w.queue}, w.in)
	}
}

// wake is a queue that gets runnable work, in some time.
type wake struct {
	queue string
	in    time.Duration
}

// wakesOf lists each queue once for what is eligible now, and once for its earliest later row.
func wakesOf(rows []pg.Insertion, answers []pg.Inserted) []wake {
	var wakes []wake
next:
	for i, row := range rows {
		if answers[i].Duplicate || answers[i].Repeated {
			continue
		}
		w := wake{row.Queue, row.Delay}
		if !row.EligibleAt.IsZero() {
			w.in = time.Until(row.EligibleAt)
		}
		w.in = max(w.in, 0)
		for j, have := range wakes {
			if have.queue == w.queue && (have.in > 0) == (w.in > 0) {
				wakes[j].in = min(have.in, w.in)
				continue next
			}
		}
		wakes = append(wakes, w)
	}
	return wakes
}
