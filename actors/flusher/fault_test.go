package flusher

import (
	"testing"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		fault   Fault
		size, n int
		want    step
	}{
		{"content of many", Content, 8, 1, halve},
		{"content of one", Content, 1, 1, refuse},
		{"content of one after other failures", Content, 1, 9, refuse},
		{"first lock", Locked, 8, 1, probe},
		{"first lock of one", Locked, 1, 1, probe},
		{"lock that no row shows", Locked, 8, 2, halve},
		{"lock that no row shows, of one", Locked, 1, 2, aside},
		{"deadlock", Collided, 8, 1, again},
		{"deadlock again", Collided, 8, 2, again},
		{"deadlock for good", Collided, 8, 3, halve},
		{"deadlock of one for good", Collided, 1, 3, aside},
		{"no connection", Away, 8, 1, wait},
		{"no connection for long", Away, 1, 1000, wait},
		{"unknown", Unknown, 8, 1, wait},
		{"unknown for good", Unknown, 8, 3, halve},
		{"unknown of one is never refused", Unknown, 1, 1000, aside},
		{"stopped", Ended, 8, 1, end},
	} {
		if got := decide(c.fault, c.size, c.n); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestSiftClosesGapsInOrder(t *testing.T) {
	t.Parallel()
	var b batch
	for id := range int64(6) {
		b.add(pg.Outcome{ID: id}, waiter{}, 1)
	}
	p := b.sift(part{1, 6, 2}, func(o *pg.Outcome, _ waiter) bool { return o.ID%2 == 0 })
	if p != (part{1, 4, 2}) {
		t.Fatalf("part %v", p)
	}
	for i, want := range []int64{0, 1, 3, 5} {
		if b.outcomes[i].ID != want {
			t.Errorf("slot %d holds %d, want %d", i, b.outcomes[i].ID, want)
		}
	}
}

func TestTouched(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind pg.Kind
		want int
	}{{pg.KindDone, 2}, {pg.KindFailed, 2}, {pg.KindNext, 1}, {pg.KindAwait, 1}} {
		n := 0
		touched(&pg.Outcome{ID: 1, ParentID: 2, Kind: c.kind}, func(int64) { n++ })
		if n != c.want {
			t.Errorf("kind %d: %d rows, want %d", c.kind, n, c.want)
		}
	}
}

// A step actor uses its reply channel again, so a second answer would be taken for that of its next outcome.
func TestAPanicAfterTheEntryWasTakenGivesOneAnswer(t *testing.T) {
	t.Parallel()
	w := newWriter(Config{}.withDefaults())
	defer w.cancel()
	f := newFlusher(w)
	reply := make(chan actors.Committed, 2)
	func() {
		defer func() { _ = recover() }()
		f.commit(nil, &actors.Commit{Outcome: pg.Outcome{ID: 1}, Reply: reply}) // panics on the way to its mailbox
	}()
	f.abandon(actors.ErrRestarting)
	if n := len(reply); n != 1 {
		t.Errorf("%d answers", n)
	}
}
