package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// TestChainsKeepTheirSlotsBesideWhatMayBeLong: a core tells them to give theirs up only while all that it runs, or has run lately, is
// known to have short steps only, and somebody waits for a slot.
func TestChainsKeepTheirSlotsBesideWhatMayBeLong(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{Concurrency: 1}, false, now)
	c.On(Tick{}, now)
	var id int64
	run := func(machine string) {
		t.Helper()
		id++
		if c.supply.claim.asked != 1 || !c.supply.claim.inFlight {
			c.On(Poked{}, now)
		}
		expectStarts(t, c.On(ClaimResult{Rows: []pg.Claimed{{ID: id, Machine: machine}}, Took: time.Millisecond}, now), id)
	}
	end := func(longest time.Duration, end actors.StepEnd) {
		c.On(Ended{[]actors.StepEnded{{ID: id, End: end, Delay: -1, Took: longest, Longest: longest}}}, now)
	}
	brisk := func(when string, expected bool) {
		t.Helper()
		if c.Brisk(now) != expected {
			t.Fatalf("%s, chains are to give up their slots: %v", when, !expected)
		}
	}
	run("quick")
	brisk("beside what is not known", false)
	end(time.Millisecond, actors.EndCommitted)
	run("quick")
	brisk("beside what is known to be quick", true)
	end(time.Millisecond, actors.EndCommitted)
	c.On(ClaimResult{}, now)
	brisk("while nobody waits", false)
	run("long")
	brisk("beside another that is not known", false)
	end(longStep, actors.EndCommitted)
	run("quick")
	brisk("soon after a long step", false)
	end(time.Millisecond, actors.EndCommitted)
	now = now.Add(slowFor)
	run("quick")
	brisk("long after it", true)
	end(30*time.Millisecond, actors.EndCommitted)
	run("quick")
	brisk("beside what was long only once", true)
	end(time.Millisecond, actors.EndAbandoned)
	run("quick")
	brisk("beside one like another that was given up", false)
	for range 10 {
		end(time.Millisecond, actors.EndCommitted)
		run("quick")
	}
	brisk("soon after it", false)
	now = now.Add(slowFor)
	end(time.Millisecond, actors.EndStale)
	run("quick")
	brisk("after one of which nobody knows how long it would have taken", false)
	end(time.Millisecond, actors.EndCommitted)
	run("quick")
	brisk("after one that was quick again", true)
	end(0, actors.EndStale)
	run("quick")
	brisk("after one that did nothing", true)
	for i := range maxPaces + 10 {
		end(time.Millisecond, actors.EndCommitted)
		run(fmt.Sprint(i))
	}
	end(time.Millisecond, actors.EndCommitted)
	run("one too many")
	end(time.Millisecond, actors.EndCommitted)
	run("one too many")
	brisk("beside what there is no place to remember", false)
	if n := len(c.paces.of); n != maxPaces {
		t.Errorf("%d paces are remembered", n)
	}
}
