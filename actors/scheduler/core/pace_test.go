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
	end(time.Millisecond, actors.EndDenied)
	c.On(ReleaseResult{}, now)
	c.On(ClaimResult{}, now)
	brisk("while nobody waits", false)
	run("long")
	brisk("beside another that is not known", false)
	end(time.Second, actors.EndCommitted)
	run("quick")
	brisk("soon after a long step", false)
	end(time.Millisecond, actors.EndCommitted)
	now = now.Add(keepFor)
	run("quick")
	brisk("long after it", true)

	end(time.Second, actors.EndCommitted)
	run("quick")
	end(time.Second, actors.EndCommitted)
	run("quick")
	brisk("when all was held up at once", true)
	now = now.Add(returnPatience)
	end(time.Second, actors.EndAbandoned)
	run("quick")
	brisk("when that has come twice", false)
	for range 10 {
		end(time.Millisecond, actors.EndStale)
		run("quick")
	}
	now = now.Add(keepFor)
	brisk("after some of which nobody knows how long they would have taken", false)
	for range 5 {
		end(time.Millisecond, actors.EndCommitted)
		run("quick")
	}
	brisk("after some that were quick again", true)
	end(0, actors.EndStale)
	run("quick")
	brisk("after one that did nothing", true)

	end(time.Millisecond, actors.EndCrowded)
	c.On(ReleaseResult{}, now)
	run("quick")
	brisk("after a chain found no slot", false)
	now = now.Add(keepFor)
	brisk("long after that", true)
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
