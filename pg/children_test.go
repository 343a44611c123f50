package pg

import (
	"slices"
	"testing"
	"time"
)

// TestSiblingsInOneFlush: the parent is told once, by their number, whatever their outcome.
func TestSiblingsInOneFlush(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("siblings")
	parent, children := spawn(t, s, c, 5)
	rows := claim(t, s, bob, 10)
	if len(rows) != 5 || rows[0].ParentID != parent {
		t.Fatalf("claimed %+v", rows)
	}
	f := commitAll(t, c, outcome(rows[0], bob, KindDone), outcome(rows[1], bob, KindFailed), outcome(rows[2], bob, KindDone))
	if len(f.Woken) != 0 {
		t.Errorf("woken too early: %v", f.Woken)
	}
	if in := get(t, s, parent); in.Status != AwaitingChildren || in.ChildrenPending != 2 {
		t.Errorf("the parent is %+v", in)
	}
	f = commitAll(t, c, outcome(rows[3], bob, KindDone), outcome(rows[4], bob, KindDone))
	if !slices.Equal(f.Woken, []string{"default"}) {
		t.Errorf("woken are %v", f.Woken)
	}
	row := claimOne(t, s, alice)
	if row.ID != parent || len(row.Children) != 5 || row.ChildCounts[Done] != 4 || row.ChildCounts[Failed] != 1 {
		t.Errorf("the parent sees %+v", row)
	}
	for i, child := range row.Children {
		if child.ID != children[i] || child.Machine != "c" {
			t.Errorf("child %d is %+v", i, child)
		}
	}
	if row.Children[1].Error != "no" {
		t.Errorf("the failed child is %+v", row.Children[1])
	}
}

// TestGrandchildren: a child fans out itself, and the two joins follow each other.
func TestGrandchildren(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("grand")
	parent, children := spawn(t, s, c, 1)
	child := claimOne(t, s, alice)
	o := outcome(child, alice, KindChildren)
	o.Children = []Insertion{{Machine: "g", Version: 2, Step: "x", Queue: "default", State: []byte(`{"deep": true}`)}}
	commitAll(t, c, o)
	grand := claimOne(t, s, alice)
	if grand.ParentID != children[0] || grand.Version != 2 || string(grand.State) != `{"deep": true}` {
		t.Fatalf("the grandchild is %+v", grand)
	}
	commitAll(t, c, outcome(grand, alice, KindDone))
	wantStatus(t, s, AwaitingChildren, parent)
	commitAll(t, c, outcome(claimOne(t, s, alice), alice, KindDone))
	if row := claimOne(t, s, alice); row.ID != parent || len(row.Children) != 1 {
		t.Errorf("after both joins the claim shows %+v", row)
	}
}

// TestFanOut: duplicate keys are dropped and not waited for; the columns of children arrive.
func TestFanOut(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("fan")
	live := []string{"runnable", "executing", "awaiting_signal", "awaiting_children"}
	put(t, s, 1, func(i *Insertion) { i.CorrelationKey, i.CorrelationScope, i.Queue = "taken", live, "far" })
	put(t, s, 1)
	o := outcome(claimOne(t, s, alice), alice, KindChildren)
	child := func(key, queue string, delay time.Duration) Insertion {
		return Insertion{Machine: "c", Version: 1, Step: "a", Queue: queue, CorrelationKey: key, CorrelationScope: live,
			ConcurrencyKey: "ck", RateLimit: "rl", Weight: 4, Priority: -3, Delay: delay}
	}
	o.Children = []Insertion{child("b", "q1", 0), child("a", "q2", time.Hour), child("taken", "q3", 0), child("b", "q4", 0),
		child("", "q5", 0)}
	f := commitAll(t, c, o)
	if f.Verdicts[0].Children != 3 || f.Verdicts[0].Status != AwaitingChildren {
		t.Errorf("verdict %+v", f.Verdicts[0])
	}
	if !slices.Equal(f.Woken, []string{"q1", "q5"}) {
		t.Errorf("woken are %v: neither delayed nor dropped children count", f.Woken)
	}
	queues := value[[]string](t, s, `SELECT array_agg(queue ORDER BY id) FROM gen_durable WHERE parent_id = $1
		AND concurrency_key = 'ck' AND rate_limit = 'rl' AND weight = 4 AND priority = -3`, o.ID)
	if !slices.Equal(queues, []string{"q2", "q1", "q5"}) {
		t.Errorf("the children, in the order of keys and then as given, are in %v", queues)
	}
	// A fan-out of nothing but duplicates goes on at once.
	put(t, s, 1)
	o = outcome(claimOne(t, s, alice), alice, KindChildren)
	o.Children = []Insertion{child("a", "q", 0), child("b", "q", 0)}
	if v := commitAll(t, c, o).Verdicts[0]; v.Children != 0 || v.Status != Runnable {
		t.Errorf("verdict of duplicates only: %+v", v)
	}
}

// TestSixtyThousandChildren spawns them in one statement and joins them in batches (trap 3).
func TestSixtyThousandChildren(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("crowd")
	const n = 60000
	parent, _ := spawn(t, s, c, n)
	for left := n; left > 0; {
		rows := claim(t, s, bob, 15000)
		left -= len(rows)
		outcomes := make([]Outcome, len(rows))
		for i, row := range rows {
			outcomes[i] = outcome(row, bob, KindDone)
		}
		commitAll(t, c, outcomes...)
		if in := get(t, s, parent); in.ChildrenPending != left {
			t.Fatalf("the parent waits for %d, expected %d", in.ChildrenPending, left)
		}
	}
	row := claimOne(t, s, alice)
	if row.ID != parent || len(row.Children) != HandedOver || !row.MoreChildren || row.ChildCounts[Done] != n {
		t.Errorf("the parent sees %d children (more: %v), counts %v", len(row.Children), row.MoreChildren, row.ChildCounts)
	}
	page, err := s.ChildrenPage(testContext(t), parent, row.Children[HandedOver-1].ID, 10)
	if err != nil || len(page) != 10 || page[0].ID <= row.Children[HandedOver-1].ID {
		t.Errorf("the next page is %v, %v", page, err)
	}
}

// TestParentAndChildInOneBatch: an outcome that the parent's old worker still had on its way meets the last child's end.
func TestParentAndChildInOneBatch(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("family")
	put(t, s, 1)
	old := claimOne(t, s, alice)
	reap(t, s)
	o := outcome(claimOne(t, s, bob), bob, KindChildren)
	o.Children = []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: "default"}}
	commitAll(t, c, o)
	child := claimOne(t, s, bob)
	late := signal(t, s, old.ID, "go")
	for _, o := range everyKind(old, alice, []int64{late}) {
		if o.Kind == KindFailed {
			break
		}
		before := snapshot(t, s)
		if v := flushAll(t, c, o).Verdicts[0]; v.Fate != Stale || snapshot(t, s) != before {
			t.Errorf("kind %d of the old worker: %+v", o.Kind, v)
		}
	}
	// The join writes the parent's row in this very transaction; the stale outcome must not take that for its own.
	stale := outcome(old, alice, KindNext)
	stale.Handed = []int64{late}
	f := flushAll(t, c, stale, outcome(child, bob, KindDone))
	if f.Verdicts[0].Fate != Stale || f.Verdicts[1].Fate != Committed {
		t.Errorf("the verdicts are %+v", f.Verdicts)
	}
	wantStatus(t, s, Runnable, old.ID)
	wantInbox(t, s, old.ID, late)
}

// TestFanOutBesideOldChildren: what a parent still waits for from an earlier round is not forgotten.
func TestFanOutBesideOldChildren(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("rounds")
	parent, children := spawn(t, s, c, 1)
	exec(t, s, `UPDATE gen_durable SET status = 'runnable', priority = -5 WHERE id = $1`, parent) // as an operator's retry may
	o := outcome(claim(t, s, alice, 1)[0], alice, KindChildren)
	if o.ID != parent {
		t.Fatalf("claimed %d", o.ID)
	}
	o.Children = []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: "default"}}
	commitAll(t, c, o)
	rows := claim(t, s, bob, 10)
	if len(rows) != 2 || rows[0].ID != children[0] {
		t.Fatalf("claimed %+v", rows)
	}
	commitAll(t, c, outcome(rows[0], bob, KindDone))
	wantStatus(t, s, AwaitingChildren, parent)
	commitAll(t, c, outcome(rows[1], bob, KindDone))
	wantStatus(t, s, Runnable, parent)
}
