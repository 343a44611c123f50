package pg

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// HandedOver is how many signals, and how many children, a claim hands to a step at most; the rest comes in pages.
const HandedOver = 1000

// Enrich loads the inboxes and the children of rows that continue, as Claim does for those it claims: of each row ID,
// Awaits, HasInbox and HasChildren are read, and what hangs on the last two is filled in. At most one round trip.
func (s *Store) Enrich(ctx context.Context, rows []Claimed) error {
	err := within(ctx, 0, func(ctx context.Context) error { return s.enrich(ctx, rows) })
	if err != nil {
		return fmt.Errorf("pg: load the inboxes and children of rows that continue: %w", err)
	}
	return nil
}

// enrich loads the inboxes and the children of those claimed rows that can have any, in one round trip.
func (s *Store) enrich(ctx context.Context, claimed []Claimed) error {
	byID := make(map[int64]*Claimed)
	var targets, parents []int64
	var awaits texts
	for i := range claimed {
		c := &claimed[i]
		if c.HasInbox {
			targets, awaits = append(targets, c.ID), append(awaits, nameArray(c.Awaits))
		}
		if c.HasChildren {
			parents = append(parents, c.ID)
		}
		if c.HasInbox || c.HasChildren {
			byID[c.ID] = c
		}
	}
	if len(byID) == 0 {
		return nil
	}
	return onFreshPlan(ctx, s.db(), func(db DB) error {
		for _, c := range byID {
			c.Inbox, c.MoreInbox, c.Children, c.MoreChildren, c.ChildCounts = nil, false, nil, false, nil
		}
		var b pgx.Batch
		if len(targets) > 0 {
			b.Queue(s.sql("claim_inbox"), targets, awaits, HandedOver+1).Query(func(rows pgx.Rows) error {
				return readInboxes(rows, byID)
			})
		}
		if len(parents) > 0 {
			b.Queue(s.sql("claim_children"), parents, HandedOver+1).Query(func(rows pgx.Rows) error {
				return readChildren(rows, byID)
			})
			b.Queue(s.sql("claim_counts"), parents).Query(func(rows pgx.Rows) error {
				return readCounts(rows, byID)
			})
		}
		return db.SendBatch(ctx, &b).Close()
	})
}

// readInboxes reads signals, at most HandedOver and one a target, and puts each inbox in order.
func readInboxes(rows pgx.Rows, byID map[int64]*Claimed) error {
	var of reference
	var sig Signal
	into := append([]any{&of.id, &of.trace}, sig.into()...)
	_, err := pgx.ForEachRow(rows, into, func() error {
		c := byID[of.id]
		sig.TraceContext = text(of.trace)
		c.Inbox = append(c.Inbox, sig)
		sig.Payload = nil
		return nil
	})
	for _, c := range byID {
		if c.MoreInbox = len(c.Inbox) > HandedOver; c.MoreInbox {
			c.Inbox = keepAwaited(c.Inbox, c.Awaits)
		}
		slices.SortFunc(c.Inbox, func(a, b Signal) int { return cmp.Compare(a.ID, b.ID) })
	}
	return err
}

// keepAwaited drops the signal that only said that there are more: one that is not awaited if there is any, else the
// youngest.
func keepAwaited(inbox []Signal, awaits []string) []Signal {
	last := 0
	for i, s := range inbox {
		was, is := slices.Contains(awaits, inbox[last].Name), slices.Contains(awaits, s.Name)
		if was && !is || was == is && s.ID > inbox[last].ID {
			last = i
		}
	}
	return slices.Delete(inbox, last, last+1)
}

func readChildren(rows pgx.Rows, byID map[int64]*Claimed) error {
	var of reference
	var child Child
	into := append([]any{&of.id, &of.trace}, child.into()...)
	_, err := pgx.ForEachRow(rows, into, func() error {
		c := byID[of.id]
		child.TraceContext = text(of.trace)
		if len(c.Children) == HandedOver {
			c.MoreChildren = true
			return nil
		}
		c.Children = append(c.Children, child)
		child.State, child.Result = nil, nil
		return nil
	})
	for _, c := range byID {
		slices.SortFunc(c.Children, func(a, b Child) int { return cmp.Compare(a.ID, b.ID) })
	}
	return err
}

func readCounts(rows pgx.Rows, byID map[int64]*Claimed) error {
	var parent, n int64
	var status Status
	_, err := pgx.ForEachRow(rows, []any{&parent, &status, &n}, func() error {
		c := byID[parent]
		if c.ChildCounts == nil {
			c.ChildCounts = map[Status]int64{}
		}
		c.ChildCounts[status] = n
		return nil
	})
	return err
}

// reference is the row that a signal or a child belongs to, and the trace that comes with it.
type reference struct {
	id    int64
	trace *string
}

// into are the destinations of the columns of a signal, in the order of the statements that return signals.
func (s *Signal) into() []any { return []any{&s.ID, &s.Name, &s.Payload, &s.InsertedAt} }

// into are the destinations of the columns of a child, in the order of the statements that return children.
func (c *Child) into() []any {
	return []any{&c.ID, &c.Machine, &c.Status, &c.CorrelationKey, &c.State, &c.Result, &c.Error}
}
