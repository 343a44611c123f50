package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoNodeRow says that a node has no row of its own: it was deleted, or another incarnation has taken it.
var ErrNoNodeRow = errors.New("pg: the node's row is gone or carries another incarnation")

// MemberBeat is what a member says of itself with each beat.
type MemberBeat struct {
	// ID is the member's id, and Next the one that it takes instead if this beat comes later than Late after the one
	// before: others may have declared ID dead by then, for ever. Invariant: Late is shorter than TTL.
	ID, Next string
	// TTL is how long a member is believed to live without a beat.
	Late, TTL time.Duration
	Address   string
	Role      string
	// Lanes are the lanes that it serves now, and Seats how many lanes of each numbered queue it could serve.
	Lanes []string
	Seats map[string]int
}

// Member is a living member of the cluster.
type Member struct {
	// Own says that it is the caller's own row.
	Own               bool
	Node, Incarnation string
	ID, Address, Role string
	Queues, Machines  []string
	Lanes             []string
	Seats             map[string]int
}

// BeatMember writes a member's beat into its node's row and reads who lives, by the server's clock, one a address. It
// returns ErrNoNodeRow, with the others, when there is no row to write to. One round trip.
func (s *Store) BeatMember(ctx context.Context, n Node, b MemberBeat) ([]Member, error) {
	var members []Member
	seats := b.Seats
	if seats == nil {
		seats = map[string]int{}
	}
	err := onFreshPlan(ctx, s.pool, func(db DB) error {
		rows, err := db.Query(ctx, s.sql("member_beat"), n.Engine, nodeRow(n), n.Incarnation, b.ID, b.Next,
			b.Late.Microseconds(), b.TTL.Microseconds(), b.Address, b.Role, orNone(b.Lanes), seats)
		if err != nil {
			return err
		}
		members, err = pgx.CollectRows(rows, scanMember)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pg: beat of member %q: %w", b.ID, err)
	}
	for _, m := range members {
		if m.Own {
			return members, nil
		}
	}
	return members, ErrNoNodeRow
}

func scanMember(row pgx.CollectableRow) (m Member, err error) {
	err = row.Scan(&m.Own, &m.Node, &m.Incarnation, &m.ID, &m.Address, &m.Role, &m.Queues, &m.Machines, &m.Lanes, &m.Seats)
	return m, err
}

// LeaveMember says that the node is no member any more. One round trip.
func (s *Store) LeaveMember(ctx context.Context, n Node) error {
	err := onFreshPlan(ctx, s.pool, func(db DB) error {
		_, err := db.Exec(ctx, s.sql("member_leave"), n.Engine, nodeRow(n), n.Incarnation)
		return err
	})
	if err != nil {
		return fmt.Errorf("pg: node %q leaves the cluster: %w", n.Name, err)
	}
	return nil
}
