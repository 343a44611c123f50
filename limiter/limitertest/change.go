package limitertest

import (
	"github.com/gendurable/gendurable/limiter"
)

func loweredAndRaised(s *suite) {
	s.gates(limiter.Gate{Name: "g", Limit: 6, Shards: 2})
	slots := s.admit("six", 6, s.rows(7, "g", ""))
	s.gates(limiter.Gate{Name: "g", Limit: 2, Shards: 2})
	s.reconcile()
	for i := range 4 {
		s.admit("above a lowered limit", 0, s.rows(2, "g", ""))
		s.giveBack(slots[i : i+1])
		if i == 1 {
			s.reconcile() // which must not lose sight of those above the limit
		}
	}
	s.admit("at the lowered limit", 0, s.rows(2, "g", ""))
	s.giveBack(slots[5:])
	s.reconcile()
	s.gates(limiter.Gate{Name: "g", Limit: 5, Shards: 2})
	s.reconcile()
	s.admit("raised, with one held", 4, s.rows(6, "g", ""))

	s.rates(limiter.Rate{Name: "r", Allowed: 6, Per: ages})
	s.admit("one of six", 1, s.rows(1, "", "r"))
	s.rates(limiter.Rate{Name: "r", Allowed: 2, Per: ages})
	s.admit("a lowered burst", 2, s.rows(6, "", "r"))
	s.rates(limiter.Rate{Name: "r", Allowed: 9, Per: ages})
	s.reconcile()
	s.admit("a raised one gives nothing away", 0, s.rows(6, "", "r"))
}

func otherShards(s *suite) {
	for _, shards := range []int{1, 4, 2, 8, 3} {
		s.sync(limiter.Config{
			Gates: []limiter.Gate{{Name: "g", Limit: 8 + shards, Shards: shards}},
			Rates: []limiter.Rate{{Name: "r", Allowed: 8, Per: ages, Shards: shards}},
		})
		s.reconcile()
		s.wantFree("after a change of shards", "g", 8+shards)
		s.admit("one token each time", 1, s.rows(1, "", "r"))
	}
	s.reconcile()
	s.admit("tokens are neither lost nor found", 3, s.rows(8, "", "r"))
}

func otherShardsUnderHolders(s *suite) {
	s.gates(limiter.Gate{Name: "g", Limit: 8, Shards: 2})
	slots := s.admit("seven of eight", 7, s.rows(7, "g", ""))
	for _, c := range []struct{ limit, shards int }{{8, 4}, {8, 1}, {8, 3}, {10, 5}, {10, 1}} {
		s.gates(limiter.Gate{Name: "g", Limit: c.limit, Shards: c.shards})
		more := s.admitAtMost("before the reconcile", c.limit-7, s.rows(12, "g", ""))
		s.giveBack(more)
		s.reconcile()
		s.wantFree("after it", "g", c.limit-7)
	}
	s.gates(limiter.Gate{Name: "g", Limit: 3, Shards: 3})
	s.reconcile()
	s.admit("lowered below the holders", 0, s.rows(4, "g", ""))
	s.giveBack(slots[:4])
	s.admitAtMost("when as many are left", 0, s.rows(4, "g", ""))
	s.giveBack(slots[4:6])
	s.reconcile()
	s.wantFree("when one is left", "g", 2)
	s.giveBack(slots[6:])
	s.reconcile()
	s.wantFree("when none is left", "g", 3)
}

// admitAtMost is admit where fewer may do.
func (s *suite) admitAtMost(what string, n int, rows []limiter.Request) held {
	s.Helper()
	admitted, slots, last, err := settle(s.ctx, s.b.Limiter, rows)
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
	if len(admitted) > n {
		s.Fatalf("%s: admitted are %v, expected at most %d; %+v", what, admitted, n, last)
	}
	return slots
}

func creditNeverExceeds(s *suite) {
	s.gates(limiter.Gate{Name: "g", Limit: 4, Shards: 2})
	released := s.end(s.admit("four", 4, s.rows(4, "g", "")))
	s.credit(released)
	s.credit(released)
	s.credit([]limiter.Release{
		{Slot: limiter.Slot{ID: released[0].ID, Claim: released[0].Claim, Key: "g", Shard: 99}, Mark: released[0].Mark},
		{Slot: limiter.Slot{ID: released[0].ID, Claim: released[0].Claim, Key: "g:cold", Shard: 0}, Mark: released[0].Mark},
		{Slot: limiter.Slot{ID: released[0].ID, Claim: released[0].Claim, Key: "unknown", Shard: 0}, Mark: released[0].Mark},
	})
	s.wantFree("after credits for nothing", "g", 4)
	s.wantFree("of a key that was credited while cold", "g:cold", 4)
}

func creditOfWhatIsCounted(s *suite) {
	s.gates(limiter.Gate{Name: "g", Limit: 3})
	slots := s.admit("three", 3, s.rows(3, "g", ""))
	released := s.end(slots[:1])
	s.b.Vanish(s.T, slots[:1])
	if r := s.reconcile(); s.b.Truth && r.Healed != 1 {
		s.Errorf("a slot that was released and not credited: %+v", r)
	}
	again := s.admit("the one that was found", 1, s.rows(2, "g", ""))
	s.credit(released) // late
	s.admit("a credit that comes late", 0, s.rows(2, "g", ""))

	// The same when the whole key was forgotten in between.
	late := s.end(append(slots[1:], again...))
	s.b.Vanish(s.T, append(slots[1:], again...))
	s.reconcile()
	s.admit("a forgotten key", 3, s.rows(4, "g", ""))
	s.credit(late)
	s.admit("credits from before", 0, s.rows(2, "g", ""))
}

func lostSlotsComeBack(s *suite) {
	s.gates(limiter.Gate{Name: "g", Limit: 6, Shards: 3})
	slots := s.admit("six", 6, s.rows(6, "g", ""))
	s.end(slots[:4])
	s.b.Vanish(s.T, slots[:4])
	s.reconcile()
	s.wantFree("after one reconcile", "g", 4)
	// A credit after the count, for what ended after it, counts.
	s.giveBack(slots[4:])
	s.wantFree("and the others", "g", 6)
}

func reconcileKeeps(s *suite) {
	s.sync(limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 4, Shards: 2}}, Rates: []limiter.Rate{{Name: "r", Allowed: 4, Per: ages, Shards: 2}}})
	slots := s.admit("three of each", 3, s.rows(3, "g", "r"))
	for range 2 {
		if r := s.reconcile(); s.b.Truth && r != (limiter.Reconciled{}) {
			s.Errorf("nothing is wrong, but corrected was %+v", r)
		}
		if err := s.b.Limiter.Renew(s.ctx, slots, patience); err != nil {
			s.Error(err)
		}
	}
	s.wantFree("the gate", "g", 1)
	s.admit("the rate", 1, s.rows(3, "", "r"))
	// A limit that is removed while it is held, and comes back.
	if err := s.b.Limiter.RemoveConfig(s.ctx, limiter.Name{Kind: limiter.KindGate, Name: "g"}); err != nil {
		s.Fatal(err)
	}
	s.reconcile()
	s.gates(limiter.Gate{Name: "g", Limit: 4, Shards: 2})
	s.reconcile()
	s.wantFree("a gate that was gone for a while", "g", 1)
}

func keysAtRest(s *suite) {
	s.sync(limiter.Config{
		Gates: []limiter.Gate{{Name: "g", Limit: 4, Shards: 2}},
		Rates: []limiter.Rate{{Name: "slow", Allowed: 4, Per: ages}, {Name: "fast", Allowed: 4e6, Per: 1e9, Shards: 4}},
	})
	for _, partition := range []string{":a", ":b", ":c"} {
		s.giveBack(s.admit("gate", 2, s.rows(2, "g"+partition, "")))
		s.admit("slow", 1, s.rows(1, "", "slow"+partition))
		s.admit("fast", 2, s.rows(2, "", "fast"+partition))
	}
	total := limiter.Reconciled{}
	s.eventually("gates that nobody holds and rates that are full to be forgotten", func() bool {
		total = total.Add(s.reconcile())
		return total.Swept >= 6
	})
	if total.Swept != 6 {
		s.Errorf("forgotten were %d keys, expected 6", total.Swept)
	}
	s.wantFree("a forgotten gate", "g:a", 4)
	s.admit("a rate that is not full", 3, s.rows(6, "", "slow:a"))
	if err := s.b.Limiter.RemoveConfig(s.ctx, limiter.Name{Kind: limiter.KindRate, Name: "slow"}); err != nil {
		s.Fatal(err)
	}
	if r := s.reconcile(); r.Swept < 3 {
		s.Errorf("the keys of a removed limit: %+v", r)
	}
}
