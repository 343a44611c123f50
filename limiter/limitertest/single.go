package limitertest

import (
	"math"
	"time"

	"github.com/gendurable/gendurable/limiter"
)

func gateIsNeverOver(s *suite) {
	for _, shards := range []int{1, 3} {
		gate := map[int]string{1: "one", 3: "three"}[shards]
		s.gates(limiter.Gate{Name: gate, Limit: 7, Shards: shards})
		rows := s.rows(10, gate, "")
		slots := s.admit("a cold gate", 7, rows)
		for _, d := range s.ask(rows[7:]) {
			if d.Verdict != limiter.Saturated || d.By != limiter.KindGate || d.Key != gate || d.RetryIn >= 0 {
				s.Errorf("%d shards: denied with %+v, expected the gate, for nobody knows how long", shards, d)
			}
		}
		s.giveBack(slots[2:5])
		s.admit("after three were given back", 3, rows[7:])
		s.admit("and no more", 0, s.rows(5, gate, ""))
	}
}

func rateGivesExactlyItsBurst(s *suite) {
	s.rates(limiter.Rate{Name: "r", Allowed: 5, Per: ages}, limiter.Rate{Name: "b", Allowed: 5, Per: ages, Burst: 8, Shards: 4})
	s.admit("by default the burst is what is allowed", 5, s.rows(9, "", "r"))
	s.admit("a burst of its own", 8, s.rows(9, "", "b"))
	for _, d := range s.ask(s.rows(2, "", "r")) {
		if d.Verdict != limiter.Saturated || d.By != limiter.KindRate || d.Key != "r" || d.RetryIn < time.Hour {
			s.Errorf("denied with %+v, expected the rate, for long", d)
		}
	}
}

func keysAreApart(s *suite) {
	s.sync(limiter.Config{
		Gates: []limiter.Gate{{Name: "x", Limit: 1}},
		Rates: []limiter.Rate{{Name: "x", Allowed: 2, Per: ages}},
	})
	for _, key := range []string{"x", "x:a", "x:b", "x:a:b"} {
		s.admit("gate "+key, 1, s.rows(3, key, ""))
		s.admit("rate "+key, 2, s.rows(3, "", key))
	}
	// Many keys in one call, most urgent first.
	var rows []limiter.Request
	for range 3 {
		for _, key := range []string{"x:1", "x:2", "x:3", "x:4"} {
			rows = append(rows, s.rows(1, key, "")...)
		}
	}
	s.admit("one of each", 4, rows)
}

func noLimits(s *suite) {
	s.admit("rows without limits", 3, s.rows(3, "", ""))
	if d := s.ask(nil); len(d) != 0 {
		s.Errorf("nothing was asked, and the answer is %v", d)
	}
	s.credit(nil)
	if err := s.b.Limiter.Renew(s.ctx, nil, time.Minute); err != nil {
		s.Error(err)
	}
}

func configIsReadBack(s *suite) {
	own := limiter.Config{
		Rates: []limiter.Rate{{Name: "r", Allowed: 120, Per: time.Minute, Shards: 2}},
		Gates: []limiter.Gate{{Name: "g", Limit: 3}},
	}
	s.sync(own)
	own.Gates[0].Limit = 4
	s.sync(own)
	other, err := s.b.Peer(s.T).SyncConfig(s.ctx, limiter.Config{Gates: []limiter.Gate{{Name: "h", Limit: 9, Shards: 3}}})
	if err != nil {
		s.Fatal(err)
	}
	for what, c := range map[string]limiter.Config{"written": other, "only read": s.sync(limiter.Config{})} {
		if len(c.Rates) != 1 || len(c.Gates) != 2 {
			s.Fatalf("%s: in force are %+v", what, c)
		}
		r, g := c.Rates[0], c.Gates[0]
		if r.Name != "r" || math.Abs(r.PerSecond()-2) > 1e-12 || r.Burst != 120 || r.Shards != 2 || g != (limiter.Gate{Name: "g", Limit: 4, Shards: 1}) ||
			c.Gates[1] != (limiter.Gate{Name: "h", Limit: 9, Shards: 3}) {
			s.Errorf("%s: in force are %+v", what, c)
		}
	}
}

func badConfigIsRefused(s *suite) {
	_, err := s.b.Limiter.SyncConfig(s.ctx, limiter.Config{Gates: []limiter.Gate{{Name: "good", Limit: 1}, {Name: "a:b", Limit: 1}}})
	if err == nil {
		s.Error("a name with a ':' was taken")
	}
	if c := s.sync(limiter.Config{}); len(c.Gates) != 0 {
		s.Errorf("of a set that was refused there is %+v", c)
	}
}

func unknownNames(s *suite) {
	s.gates(limiter.Gate{Name: "g", Limit: 2})
	rows := append(s.rows(1, "", "no:where"), s.rows(1, "nobody", "")...)
	rows = append(rows, s.rows(1, "g", "nothing")...)
	for i, d := range s.ask(rows) {
		want := map[int]string{0: "no:where", 1: "nobody", 2: "nothing"}[i]
		if d.Verdict != limiter.Unconfigured || d.Key != want || d.RetryIn >= 0 {
			s.Errorf("row %d: %+v, expected %s to be unconfigured", i, d, want)
		}
	}
	s.wantFree("the gate of a row whose rate is unknown", "g", 2)
	if err := s.b.Limiter.RemoveConfig(s.ctx, limiter.Name{Kind: limiter.KindGate, Name: "g"}, limiter.Name{Kind: limiter.KindRate, Name: "never"}); err != nil {
		s.Fatal(err)
	}
	if c := s.sync(limiter.Config{}); len(c.Gates) != 0 {
		s.Errorf("after its removal: %+v", c)
	}
	if d := s.ask(s.rows(1, "g", "")); d[0].Verdict != limiter.Unconfigured {
		s.Errorf("a removed gate: %+v", d)
	}
}

func prefixByWeight(s *suite) {
	for _, shards := range []int{1, 3} {
		name := map[int]string{1: "one", 3: "three"}[shards]
		s.rates(limiter.Rate{Name: name, Allowed: 10, Per: ages, Shards: shards})
		// The fourth would fit, but the third is before it.
		s.admit("4 and 4", 2, s.weighted(name, 4, 4, 4, 1))
		s.admit("half and one and a half", 2, s.weighted(name, 0.5, 1.5, 0.25))
		s.admit("nothing is left", 0, s.weighted(name, 0.25))
		s.admit("but for what costs nothing", 2, s.weighted(name, 0, -1, 1))
	}
}

func overTheBurst(s *suite) {
	const name = "r"
	s.rates(limiter.Rate{Name: name, Allowed: 1000, Per: ages, Burst: 10, Shards: 2})
	s.admit("takes the whole bucket", 1, s.weighted(name, 25, 1))
	s.rates(limiter.Rate{Name: name, Allowed: 1000, Per: time.Second, Burst: 4, Shards: 2})
	heavy := s.weighted(name, 10)
	s.eventually("a full bucket for a weight over a lowered burst", func() bool { return s.ask(heavy)[0].Verdict == limiter.Admitted })
	s.rates(limiter.Rate{Name: name, Allowed: 1, Per: ages, Burst: 4, Shards: 2})
	s.reconcile()
	if d := s.ask(s.weighted(name, 5)); d[0].Verdict != limiter.Saturated {
		s.Errorf("a bucket that is not full, and a weight over its burst: %+v", d)
	}
}

func onlyWhatIsAdmittedPays(s *suite) {
	s.sync(limiter.Config{
		Gates: []limiter.Gate{{Name: "wide", Limit: 5, Shards: 2}, {Name: "narrow", Limit: 1}},
		Rates: []limiter.Rate{{Name: "few", Allowed: 2, Per: ages}, {Name: "many", Allowed: 10, Per: ages, Shards: 3}},
	})
	rows := s.rows(4, "wide", "few")
	for i, d := range s.ask(rows) {
		if i < 2 != (d.Verdict == limiter.Admitted) || i >= 2 && d.By != limiter.KindRate {
			s.Errorf("row %d of four that have slots, and tokens for two: %+v", i, d)
		}
	}
	s.admit("the slots of those the rate denied are free", 3, s.rows(4, "wide", ""))
	s.admit("one for the narrow gate", 1, s.rows(5, "narrow", "many"))
	s.admit("those the gate denied took no tokens", 9, s.rows(12, "", "many"))

	// A row that a rate denies stands before one that needs none: what the gate has is not known to be used up.
	s.gates(limiter.Gate{Name: "one", Limit: 1})
	pair := append(s.rows(1, "one", "few"), s.rows(1, "one", "")...)
	d := s.ask(pair)
	if d[0].By != limiter.KindRate || d[1].Verdict != limiter.Contended && d[1].Verdict != limiter.Admitted || d[1].RetryIn != 0 {
		s.Errorf("the slot that the first row could not use: %+v", d)
	}
}

func sharesSum(s *suite) {
	for i, c := range []struct {
		total  float64
		shards int
	}{{10, 3}, {7, 7}, {11, 4}, {2.5, 2}, {0.5, 1}, {100, 16}} {
		gate, rate := "g"+string(rune('a'+i)), "r"+string(rune('a'+i))
		s.rates(limiter.Rate{Name: rate, Allowed: 1, Per: ages, Burst: c.total, Shards: c.shards})
		halves := make([]float64, int(2*c.total)+3)
		for i := range halves {
			halves[i] = 0.5
		}
		s.admit("halves of a burst", int(2*c.total), s.weighted(rate, halves...))
		if whole := int(c.total); whole >= c.shards {
			s.gates(limiter.Gate{Name: gate, Limit: whole, Shards: c.shards})
			slots := s.admit("a gate", whole, s.rows(whole+2, gate, ""))
			of := map[int16]int{}
			for _, slot := range slots {
				of[slot.Shard]++
			}
			for shard, n := range of {
				if s.b.Unsharded {
					if shard != 0 {
						s.Errorf("a slot is in shard %d, and there are none", shard)
					}
				} else if float64(n) != limiter.Share(float64(whole), c.shards, int(shard)) {
					s.Errorf("%d of %d slots are in shard %d of %d", n, whole, shard, c.shards)
				}
			}
			s.giveBack(slots)
		}
	}
}

func onlyTheOwner(s *suite) {
	s.sync(limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 2}}, Rates: []limiter.Rate{{Name: "r", Allowed: 2, Per: ages}}})
	rows := s.rows(4, "g", "r")
	s.b.End(s.T, rows[0].ID)
	rows[1].Claim++
	rows[2].Gate = "g:other"
	d := s.ask(rows)
	for i := range 3 {
		if d[i].Verdict != limiter.NotOwned || d[i].Key != "" {
			s.Errorf("row %d, which is not the worker's under this claim and key: %+v", i, d[i])
		}
	}
	if d[3].Verdict != limiter.Admitted {
		s.Errorf("the last row: %+v", d[3])
	}
	stranger, err := s.b.Limiter.Admit(s.ctx, "suite:default@other-00000000000000bb", s.rows(1, "g", ""))
	if err != nil || stranger[0].Verdict != limiter.NotOwned {
		s.Errorf("another worker: %+v, %v", stranger, err)
	}
	s.admit("what is left of both", 1, s.rows(3, "g", "r"))
}

func askingTwice(s *suite) {
	s.sync(limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 4, Shards: 2}}, Rates: []limiter.Rate{{Name: "r", Allowed: 4, Per: ages}}})
	rows := s.rows(2, "g", "r")
	first := s.admit("the first time", 2, rows)
	again := s.admit("the second time", 2, rows)
	for i := range first {
		if first[i] != again[i] {
			s.Errorf("slot %+v became %+v", first[i], again[i])
		}
	}
	s.admit("what is left of both", 2, s.rows(4, "g", "r"))
}
