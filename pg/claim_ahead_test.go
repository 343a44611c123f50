package pg

import (
	"testing"
	"time"
)

// TestClaimLooksAhead: a claim tells when the next scheduled row of its queue becomes eligible, whatever its priority, within the
// horizon and beside the rows that it takes.
func TestClaimLooksAhead(t *testing.T) {
	t.Parallel()
	s := open(t)
	ahead := func(horizon time.Duration, rows int) time.Duration {
		t.Helper()
		report := ClaimReport{Horizon: horizon, Survey: rows > 0}
		claimed := claimWith(t, s, ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: 10, Report: &report})
		if len(claimed) != rows {
			t.Errorf("claimed %d rows, expected %d", len(claimed), rows)
		}
		if report.Survey && report.At.IsZero() {
			t.Error("the survey is missing")
		}
		return report.Ahead
	}
	in := func(d time.Duration, priority int16) func(*Insertion) {
		return func(i *Insertion) { i.Delay, i.Priority = d, priority }
	}
	if d := ahead(time.Hour, 0); d != 0 {
		t.Errorf("in an empty queue: %v", d)
	}
	put(t, s, 1, in(24*time.Hour, -1))
	put(t, s, 1, in(8*time.Hour, 3))
	put(t, s, 1, in(6*time.Hour, 3))
	put(t, s, 1, in(time.Hour, 0), func(i *Insertion) { i.Queue = "other" })
	put(t, s, 1, func(i *Insertion) { i.EligibleAt = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) })
	put(t, s, 2)
	for _, rows := range []int{2, 0} {
		if d := ahead(20*time.Hour, rows); d > 6*time.Hour || d < 5*time.Hour {
			t.Errorf("the next is in %v, expected almost six hours", d)
		}
	}
	if d := ahead(5*time.Hour, 0); d != 0 {
		t.Errorf("nearer than five hours there is one in %v", d)
	}
}
