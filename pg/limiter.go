package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gendurable/gendurable/limiter"
)

// ProvisionalShard is the concurrency_shard of a row that was claimed under a gate's key and has no slot yet. It keeps
// the row out of the index that allows one executing row a key; and unlike any number from 0 on it is not a slot, so that
// nobody credits what was never taken.
const ProvisionalShard = -1

// Limiter is the limiter.Limiter that keeps its counters in the engine's own database, next to the rows it admits. It is
// immutable and safe for concurrent use.
//
// A slot's holder is the executing row that carries its number; leases on slots do not exist, the claims have theirs.
// Statements wait at most for one another's locks of shards, and as long as lock_timeout says.
type Limiter struct{ s *Store }

var _ limiter.Limiter = (*Limiter)(nil)

// NewLimiter returns the limiter on the Store's database.
func (s *Store) NewLimiter() *Limiter { return &Limiter{s} }

// The constraints that decide races for shards.
const (
	bucketsCheck = "gen_durable_buckets_check"
	bucketsKey   = "gen_durable_buckets_pkey"
)

// lostRace reports whether a statement was refused because it computed with numbers that are no longer true, or because
// who was making the same key's shards took too long.
func lostRace(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == "23514" && e.ConstraintName == bucketsCheck || e.Code == "23505" && e.ConstraintName == bucketsKey ||
		e.Code == "40P01" || e.Code == "55P03"
}

// wrap says what failed, and whether it is known to have failed.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	if uncertain(err) {
		return fmt.Errorf("pg: %s: %w: %w", what, limiter.ErrUncertain, err)
	}
	return fmt.Errorf("pg: %s: %w", what, err)
}

// uncertain reports whether a transaction may have been committed although it ended with err.
func uncertain(err error) bool {
	if err == nil || pgconn.SafeToRetry(err) {
		return false
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return false
	}
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return classifyState(server.Code) == Connection
	}
	return true
}

// SyncConfig implements limiter.Limiter. One round trip.
func (l *Limiter) SyncConfig(ctx context.Context, own limiter.Config) (limiter.Config, error) {
	if err := own.Validate(); err != nil {
		return limiter.Config{}, err
	}
	var kinds, names []string
	var rates []*float64
	var capacities []float64
	var shards []int16
	for _, r := range own.Rates {
		r = r.Normalize()
		perSecond := r.PerSecond()
		kinds, names, rates = append(kinds, string(limiter.KindRate)), append(names, r.Name), append(rates, &perSecond)
		capacities, shards = append(capacities, r.Burst), append(shards, int16(r.Shards))
	}
	for _, g := range own.Gates {
		g = g.Normalize()
		kinds, names, rates = append(kinds, string(limiter.KindGate)), append(names, g.Name), append(rates, nil)
		capacities, shards = append(capacities, float64(g.Limit)), append(shards, int16(g.Shards))
	}
	var inForce limiter.Config
	err := onFreshPlan(ctx, l.s.db(), func(db DB) error {
		batch := new(pgx.Batch)
		if len(kinds) > 0 {
			batch.Queue(l.s.sql("limit_config_put"), kinds, names, rates, capacities, shards)
		}
		batch.Queue(l.s.sql("limit_config_get")).Query(func(rows pgx.Rows) (err error) {
			inForce, err = readConfig(rows)
			return err
		})
		return db.SendBatch(ctx, batch).Close()
	})
	return inForce, wrap("store and read the limits", err)
}

func readConfig(rows pgx.Rows) (limiter.Config, error) {
	var c limiter.Config
	var kind limiter.Kind
	var name string
	var rate *float64
	var capacity float64
	var shards int16
	_, err := pgx.ForEachRow(rows, []any{&kind, &name, &rate, &capacity, &shards}, func() error {
		if kind == limiter.KindGate {
			c.Gates = append(c.Gates, limiter.Gate{Name: name, Limit: int(capacity), Shards: int(shards)})
			return nil
		}
		r := limiter.Rate{Name: name, Per: time.Second, Burst: capacity, Shards: int(shards)}
		if rate != nil {
			r.Allowed = *rate
		}
		c.Rates = append(c.Rates, r)
		return nil
	})
	return c, err
}

// RemoveConfig implements limiter.Limiter. One round trip.
func (l *Limiter) RemoveConfig(ctx context.Context, names ...limiter.Name) error {
	var kinds, list []string
	for _, n := range names {
		kinds, list = append(kinds, string(n.Kind)), append(list, n.Name)
	}
	err := onFreshPlan(ctx, l.s.db(), func(db DB) error {
		_, err := db.Exec(ctx, l.s.sql("limit_config_remove"), kinds, list)
		return err
	})
	return wrap("remove limits", err)
}

// Credit implements limiter.Limiter. A Release's Mark is the id (pg_current_xact_id) of the transaction that ended its
// holder; one without is left to Reconcile. One round trip, which waits for the shards' locks, though no longer than the
// session's lock_timeout: then, and if it is ended as a deadlock, the error wraps limiter.ErrContended.
func (l *Limiter) Credit(ctx context.Context, released []limiter.Release) error {
	var keys []string
	var shards []int16
	var marks []int64
	for _, r := range released {
		if r.Mark != 0 && r.Shard >= 0 {
			keys, shards, marks = append(keys, r.Key), append(shards, r.Shard), append(marks, int64(r.Mark))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	err := onFreshPlan(ctx, l.s.db(), func(db DB) error {
		_, err := db.Exec(ctx, l.s.sql("limit_credit"), keys, shards, marks)
		return err
	})
	if isState(err, "55P03") || isState(err, "40P01") { // lock_timeout, or a deadlock found before that
		return fmt.Errorf("pg: give back slots: %w: %w", limiter.ErrContended, err)
	}
	return wrap("give back slots", err)
}

// Renew implements limiter.Limiter. It does nothing: a slot is held as long as its row executes, and the row's lease is
// what the heartbeat extends.
func (l *Limiter) Renew(context.Context, []limiter.Slot, time.Duration) error { return nil }

// reconcilePage is how many keys one transaction reconciles.
const reconcilePage = 2000

// A page with keys that are not as configured, and whose shards somebody held, is gone through again: an admission holds them for
// milliseconds, and the next sweep may be a minute away. So many times in a sweep of the gates, and of the rates, because a gate with
// more holders than its limit is among them for as long as it has.
const (
	reconcileAgain = 8
	reconcilePause = 10 * time.Millisecond // doubling, up to reconcileMost
	reconcileMost  = 160 * time.Millisecond
)

// Reconcile implements limiter.Limiter. A round trip for each page of gates' keys and of rates' keys, and a few more for pages
// of which somebody held what is not as configured.
func (l *Limiter) Reconcile(ctx context.Context) (limiter.Reconciled, error) {
	return l.reconcile(ctx, reconcilePage, reconcileAgain)
}

// reconciledPage is what was seen of a page: how many keys it has, the last one, and how many of them it had to leave.
type reconciledPage struct {
	keys int
	last string
	left int
}

func (l *Limiter) reconcile(ctx context.Context, page, again int) (total limiter.Reconciled, err error) {
	for _, pass := range []struct {
		what string
		one  func(ctx context.Context, after string, page int) (limiter.Reconciled, reconciledPage, error)
	}{{"reconcile gates", l.reconcileGates}, {"sweep the counters of rate limits", l.sweepRates}} {
		after, pause, again := "", reconcilePause, again
		for {
			r, p, err := pass.one(ctx, after, page)
			if err != nil {
				return total, wrap(pass.what, err)
			}
			total = total.Add(r)
			switch {
			case p.left > 0 && again > 0:
				select {
				case <-time.After(pause):
				case <-ctx.Done():
					return total, wrap(pass.what, ctx.Err())
				}
				again, pause = again-1, min(2*pause, reconcileMost)
				continue
			case p.keys == page:
				after, pause = p.last, reconcilePause
				continue
			}
			break
		}
	}
	return total, nil
}

// reconcileGates handles a page of keys. The locks come first and the count in a later statement of the pipeline, which is one
// transaction: its snapshot then has every admission to a shard that is locked.
func (l *Limiter) reconcileGates(ctx context.Context, after string, page int) (r limiter.Reconciled, p reconciledPage, err error) {
	err = onFreshPlan(ctx, l.s.db(), func(db DB) error {
		var b pgx.Batch
		b.Queue(l.s.sql("limit_gates_lock"), after, page).QueryRow(func(row pgx.Row) error { return row.Scan(&p.keys, &p.last, &p.left, nil) })
		b.Queue(l.s.sql("limit_gates_heal")).QueryRow(func(row pgx.Row) error {
			return row.Scan(&r.Healed, &r.Taken, &r.Reshaped, &r.Swept)
		})
		return db.SendBatch(ctx, &b).Close()
	})
	return r, p, err
}

func (l *Limiter) sweepRates(ctx context.Context, after string, page int) (r limiter.Reconciled, p reconciledPage, err error) {
	err = onFreshPlan(ctx, l.s.db(), func(db DB) error {
		return db.QueryRow(ctx, l.s.sql("limit_rates_sweep"), after, page).Scan(&p.keys, &p.last, &r.Swept, &r.Reshaped, &p.left)
	})
	return r, p, err
}
