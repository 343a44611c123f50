package pg

import (
	"testing"
	"time"
)

// TestAllocationsOfTheHotPaths bounds what a row costs the heap. The bounds are about twice what was counted, so that no version
// of Go or of the driver meets them by chance; an allocation a column, or a copy of each row, does. It is not parallel: the
// count is of the whole process.
func TestAllocationsOfTheHotPaths(t *testing.T) {
	const batch, runs = 200, 3
	s := open(t)
	ctx := testContext(t)
	c := s.NewCommitter("allocs")
	check := func(what string, most float64, f func()) {
		t.Helper()
		n := testing.AllocsPerRun(runs, f) / batch // with a run that is not counted: statements are prepared
		t.Logf("%s: %.1f allocations a row", what, n)
		if n > most {
			t.Errorf("%s takes %.1f allocations a row, expected at most %.0f", what, n, most)
		}
	}
	rows := make([]Insertion, batch)
	for i := range rows {
		rows[i] = Insertion{Machine: "m", Version: 1, Step: "a", State: []byte(`{"n": 0}`), Queue: "default"}
	}
	check("an insert", 14, func() {
		if _, err := s.Insert(ctx, s.pool, rows); err != nil {
			t.Fatal(err)
		}
	})
	var claimed []Claimed
	take := func() { claimed = append(claimed, claim(t, s, alice, batch)...) }
	check("a claim", 4, take)
	check("a heartbeat", 2, func() {
		if _, err := s.Heartbeat(ctx, alice, time.Minute, claimedIDs(claimed[:batch])); err != nil {
			t.Fatal(err)
		}
	})
	outcomes := make([]Outcome, batch)
	flush := func(kind Kind) func() {
		return func() {
			if len(claimed) < batch {
				t.Fatalf("%d rows are claimed", len(claimed))
			}
			for i, row := range claimed[:batch] {
				outcomes[i] = outcome(row, alice, kind)
			}
			claimed = claimed[batch:]
			commitAll(t, c, outcomes...)
		}
	}
	check("a flush of next steps", 16, flush(KindNext))
	for range runs + 1 {
		take()
	}
	check("a flush of ends", 4, flush(KindDone))
	ids := put(t, s, batch)
	signals := make([]Delivery, batch)
	for i, id := range ids {
		signals[i] = Delivery{ID: id, Name: "go", Payload: []byte(`{}`)}
	}
	check("a batch of signals", 12, func() {
		if _, err := s.Signal(ctx, s.pool, signals); err != nil {
			t.Fatal(err)
		}
	})
}
