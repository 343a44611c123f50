package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// RegisterResult is what a node found when it registered.
type RegisterResult struct {
	// Replaced is the incarnation that this one replaces: a predecessor under the same explicit name. Empty = none.
	Replaced string
	// Reclaimed is the number of claims that were given back, and Queues where they are runnable again.
	Reclaimed int
	Queues    []string
}

// RegisterNode writes the node's row. A named node takes the row of its name over, which declares the incarnation there
// dead: in the same transaction its claims go back at once, and those of still earlier ones if their lease was not
// extended for two heartbeats. The name of an unnamed node is shared by live processes, whose leases may be old because
// the database was away: nothing goes back here, but by ReclaimStale at later beats.
func (s *Store) RegisterNode(ctx context.Context, n Node, lease, heartbeat time.Duration) (RegisterResult, error) {
	var r RegisterResult
	var slots slots
	err := atomically(ctx, s.pool, func(db DB) error {
		r = RegisterResult{}
		slots.clear()
		return pgx.BeginFunc(ctx, db.(beginner), func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, s.sql("node_lock"), n.Engine, nodeRow(n)).Scan(&r.Replaced)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			if r.Replaced == n.Incarnation {
				r.Replaced = ""
			}
			if _, err := tx.Exec(ctx, s.sql("node_put"), nodeArgs(n)...); err != nil {
				return err
			}
			if !n.Named {
				return nil
			}
			return tx.QueryRow(ctx, s.sql("reclaim"), n.Engine, n.Name, n.Incarnation, r.Replaced,
				staleAhead(lease, heartbeat)).Scan(slots.after(&r.Reclaimed, &r.Queues)...)
		})
	})
	s.credit(slots, err)
	if err != nil {
		return RegisterResult{}, fmt.Errorf("pg: register node %q: %w", n.Name, err)
	}
	return r, nil
}

// beginner is what starts transactions: a pool or one of its connections.
type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// BeatNode says that the node lives and brings its row up to date. It returns the incarnation that has replaced this one,
// empty as long as none has. One round trip.
func (s *Store) BeatNode(ctx context.Context, n Node) (replacedBy string, err error) {
	err = onFreshPlan(ctx, s.pool, func(db DB) error {
		return db.QueryRow(ctx, s.sql("node_beat"), nodeArgs(n)...).Scan(&replacedBy)
	})
	if err != nil {
		return "", fmt.Errorf("pg: beat of node %q: %w", n.Name, err)
	}
	if replacedBy == n.Incarnation {
		return "", nil
	}
	return replacedBy, nil
}

// RemoveNode deletes the row of a node that stops, unless another incarnation has taken it, or rows are still claimed by
// this one: the next start under its name finds them by the row. One round trip.
func (s *Store) RemoveNode(ctx context.Context, n Node) error {
	err := onFreshPlan(ctx, s.pool, func(db DB) error {
		_, err := db.Exec(ctx, s.sql("node_remove"), n.Engine, nodeRow(n), n.Incarnation)
		return err
	})
	if err != nil {
		return fmt.Errorf("pg: remove node %q: %w", n.Name, err)
	}
	return nil
}

// ReclaimStale gives back the claims of other incarnations with the same node name whose lease was not extended for two
// heartbeats, by the caller's own lease and heartbeat: processes that share a node name must share these, too. It returns
// how many, and the queues where they are runnable again. One round trip.
func (s *Store) ReclaimStale(ctx context.Context, engine, node, incarnation string, lease, heartbeat time.Duration) (n int, queues []string, err error) {
	var slots slots
	err = atomically(ctx, s.pool, func(db DB) error {
		return db.QueryRow(ctx, s.sql("reclaim"), engine, node, incarnation, "", staleAhead(lease, heartbeat)).Scan(slots.after(&n, &queues)...)
	})
	s.credit(slots, err)
	if err != nil {
		return 0, nil, fmt.Errorf("pg: reclaim stale claims of node %q: %w", node, err)
	}
	return n, queues, nil
}

// staleAhead is how far in the future, in µs, a lease ends at most that was last extended two heartbeats ago.
func staleAhead(lease, heartbeat time.Duration) int64 { return (lease - 2*heartbeat).Microseconds() }

// nodeRow is the name a node's row goes by. Unnamed nodes may share a host's name, so each has a row of its own.
func nodeRow(n Node) string {
	if n.Named {
		return n.Name
	}
	return n.Name + "-" + n.Incarnation
}

func nodeArgs(n Node) []any {
	silence := n.SilentAfter
	if silence <= 0 {
		silence = time.Minute
	}
	return []any{n.Engine, nodeRow(n), n.Incarnation, n.Named, n.Address, orNone(n.Queues), orNone(n.Machines),
		orNone(n.Steps), orNone(n.Unfit), silence.Microseconds()}
}

func orNone(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}
