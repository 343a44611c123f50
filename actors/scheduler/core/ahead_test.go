package core

import (
	"errors"
	"testing"
	"time"
)

// TestAhead: what a claim finds to be scheduled for later is claimed at its time, and that claim looks again; so does one that was
// announced for later. Claims that others ask for do not look, and the question of a failed one is asked again.
func TestAhead(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{PollBusy: 10 * time.Minute, PollIdle: time.Hour, Heartbeat: 24 * time.Hour, Jitter: func() float64 { return 0.5 }}, false, now)
	claims := func(what string, fx *Effects, looks bool) {
		t.Helper()
		if fx.Claim == 0 || (fx.Ahead == 2*time.Hour) != looks || !looks && fx.Ahead != 0 {
			t.Fatalf("%s: claim %d, ahead %v", what, fx.Claim, fx.Ahead)
		}
	}
	wakes := func(what string, fx *Effects, in time.Duration) {
		t.Helper()
		if d := fx.Wake.Sub(now); fx.Claim != 0 || d < in || d > in+time.Millisecond {
			t.Fatalf("%s: claim %d, the next wake is in %v, expected %v", what, fx.Claim, d, in)
		}
	}
	claims("the first", c.On(Tick{}, now), true)
	fx := c.On(ClaimResult{Ahead: 3 * time.Second}, now)
	wakes("after the first", fx, 3*time.Second)
	now = fx.Wake
	claims("when the time has come", c.On(Tick{}, now), true)
	fx = c.On(ClaimResult{Err: errors.New("away")}, now)
	now = fx.Wake
	claims("again after a failure", c.On(Tick{}, now), true)
	c.On(ClaimResult{}, now)
	now = now.Add(time.Minute)
	claims("on a poke", c.On(Poked{}, now), false)
	c.On(ClaimResult{Ahead: time.Second}, now) // which nobody asked for
	fx = c.On(Poked{In: 5 * time.Second}, now)
	wakes("announced for later", fx, 5*time.Second)
	now = fx.Wake
	claims("what was announced for later", c.On(Tick{}, now), true)
	fx = c.On(ClaimResult{}, now)
	now = fx.Wake
	claims("the poll", c.On(Tick{}, now), true)
}
