package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// figures are what the demo prints at its end.
type figures struct {
	ends                    map[string]int
	instances, runs, repeat int
}

// prove compares the database with the input file and with what the engine promises, and reports everything
// that does not fit.
func prove(ctx context.Context, pool *pgxpool.Pool, orders []expectation) (figures, error) {
	f := figures{ends: make(map[string]int)}
	var wrong []error
	for _, check := range []func() error{
		func() error { return f.checkEnds(ctx, pool, orders) },
		func() error { return f.checkRest(ctx, pool) },
		func() error { return f.checkOrderOfSteps(ctx, pool) },
		func() error { return f.checkRepeats(ctx, pool) },
		func() error { return f.checkCharges(ctx, pool, orders) },
	} {
		if err := check(); err != nil {
			wrong = append(wrong, err)
		}
	}
	return f, errors.Join(wrong...)
}

// checkEnds: every order of the file has one instance, and it came to the end that the file says.
func (f *figures) checkEnds(ctx context.Context, pool *pgxpool.Pool, orders []expectation) error {
	rows, err := pool.Query(ctx, `SELECT (state->>'order')::int, status::text, coalesce(last_error, '') FROM gen_durable WHERE fsm = 'order'`)
	if err != nil {
		return err
	}
	ends := make(map[int][]string)
	var order int
	var status, lastError string
	_, err = pgx.ForEachRow(rows, []any{&order, &status, &lastError}, func() error {
		end := status
		if status == "done" {
			end = endShipped
		} else if status == "failed" {
			end, _, _ = strings.Cut(lastError, ":")
		}
		ends[order] = append(ends[order], end)
		f.ends[end]++
		return nil
	})
	if err != nil {
		return err
	}
	wrong := 0
	for _, o := range orders {
		if got := ends[o.Order.Order]; len(got) != 1 || got[0] != o.Expect {
			wrong++
		}
	}
	if wrong > 0 || len(ends) != len(orders) {
		return fmt.Errorf("%d of %d orders did not come to the right end (%v)", wrong, len(orders), f.ends)
	}
	return nil
}

// checkRest: nothing is left over: every instance is terminal, every inbox empty, every shipped line shipped.
func (f *figures) checkRest(ctx context.Context, pool *pgxpool.Pool) error {
	var open, inbox, unshipped int
	err := pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM gen_durable),
		       (SELECT count(*) FROM gen_durable WHERE status NOT IN ('done', 'failed')),
		       (SELECT count(*) FROM signals),
		       (SELECT count(*) FROM gen_durable o, jsonb_array_elements(o.state->'lines') WITH ORDINALITY l(line, n)
		         WHERE o.fsm = 'order' AND o.status = 'done'
		           AND NOT EXISTS (SELECT FROM gen_durable s WHERE s.parent_id = o.id AND s.status = 'done' AND (s.state->>'line')::int = l.n - 1))`,
	).Scan(&f.instances, &open, &inbox, &unshipped)
	if err != nil {
		return err
	}
	if open+inbox+unshipped > 0 {
		return fmt.Errorf("%d instances have not ended, %d signals were left over, %d lines were not shipped", open, inbox, unshipped)
	}
	return nil
}

// checkOrderOfSteps: commit before proceed. Once a later step of an order has started, the earlier one is
// committed, and a committed step never runs again.
func (f *figures) checkOrderOfSteps(ctx context.Context, pool *pgxpool.Pool) error {
	var back int
	err := pool.QueryRow(ctx, `
		WITH ranked AS (
			SELECT order_no, id, CASE WHEN step LIKE 'ship:%' THEN 5
			       ELSE array_position(ARRAY['validate', 'reserve', 'payment', 'charge', '', 'finish'], step) END AS rank
			FROM ledger)
		SELECT count(*) FROM (
			SELECT rank < max(rank) OVER (PARTITION BY order_no ORDER BY id) AS back FROM ranked) r
		WHERE back`).Scan(&back)
	if err != nil {
		return err
	}
	if back > 0 {
		return fmt.Errorf("%d times a step ran again after the order had gone on from it", back)
	}
	return nil
}

// checkRepeats: a step that ran more than once did so because its worker was killed before the commit, so
// never twice in one process.
func (f *figures) checkRepeats(ctx context.Context, pool *pgxpool.Pool) error {
	var twice int
	err := pool.QueryRow(ctx, `
		SELECT coalesce(sum(n), 0), coalesce(sum(n - 1), 0), count(*) FILTER (WHERE n > workers)
		FROM (SELECT count(*) AS n, count(DISTINCT worker) AS workers FROM ledger GROUP BY order_no, step) g`,
	).Scan(&f.runs, &f.repeat, &twice)
	if err != nil {
		return err
	}
	if twice > 0 {
		return fmt.Errorf("%d steps ran twice in one process", twice)
	}
	return nil
}

// checkCharges: who was shipped to paid, exactly what was owed; nobody else did.
func (f *figures) checkCharges(ctx context.Context, pool *pgxpool.Pool, orders []expectation) error {
	rows, err := pool.Query(ctx, `SELECT order_no, cents FROM charges`)
	if err != nil {
		return err
	}
	charged := make(map[int]int)
	var order, cents int
	if _, err = pgx.ForEachRow(rows, []any{&order, &cents}, func() error { charged[order] = cents; return nil }); err != nil {
		return err
	}
	wrong := 0
	for _, o := range orders {
		got, ok := charged[o.Order.Order]
		if ok != (o.Expect == endShipped) || ok && got != o.total() {
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d orders were charged wrongly", wrong)
	}
	return nil
}
