// Package limitertest is the suite that every backend of package limiter passes. It is an ordinary package, so that
// backends in other modules can run it:
//
//	func TestLimiter(t *testing.T) {
//		limitertest.Run(t, func(t *testing.T) limitertest.Backend { return fresh(t) })
//	}
//
// It takes a few seconds.
package limitertest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gendurable/gendurable/limiter"
)

// Backend is a limiter without limits and without counters, and what the suite needs to know of the rows it limits. The
// functions may be called from any goroutine: they report failures with t.Error.
type Backend struct {
	Limiter limiter.Limiter
	// Truth says that the backend sees the rows themselves. Then it refuses rows that are not the worker's, and its
	// Reconcile says exactly what it has corrected.
	Truth bool
	// Unsharded says that the backend does not spread a key's slots over shards: all have number 0.
	Unsharded bool
	// Peer opens the limiter of another process on the same counters. Nil: Limiter is used for all.
	Peer func(t *testing.T) limiter.Limiter
	// Claim makes a row that the worker has claimed, under the gate's key if one is given, and that has no slot yet.
	Claim func(t *testing.T, worker, gate string) (id int64, claim int)
	// End ends the row's execution, as a committed outcome does, and returns the mark for its Credit.
	End func(t *testing.T, id int64) uint64
	// Vanish makes slots that nobody credits findable by Reconcile, where it takes more than End: leases run out. May
	// be nil.
	Vanish func(t *testing.T, slots []limiter.Slot)
}

// patience bounds every wait.
const patience = 60 * time.Second

// worker is who claims in the suite.
const worker = "suite:default@node-00000000000000aa"

// ages is a period in which no token comes that a test could notice.
const ages = 1_000_000 * time.Hour

// Run runs the suite; fresh is called for each of its tests.
func Run(t *testing.T, fresh func(t *testing.T) Backend) {
	for _, c := range []struct {
		name  string
		run   func(s *suite)
		truth bool // nothing is promised by a backend without it
	}{
		{name: "GateIsNeverOver", run: gateIsNeverOver},
		{name: "RateGivesExactlyItsBurst", run: rateGivesExactlyItsBurst},
		{name: "KeysAreApart", run: keysAreApart},
		{name: "NoLimitsNoQuestions", run: noLimits},
		{name: "ConfigIsReadBack", run: configIsReadBack},
		{name: "BadConfigIsRefused", run: badConfigIsRefused},
		{name: "UnknownNames", run: unknownNames},
		{name: "PrefixByWeight", run: prefixByWeight},
		{name: "OverTheBurst", run: overTheBurst},
		{name: "OnlyWhatIsAdmittedPays", run: onlyWhatIsAdmittedPays},
		{name: "SharesSumToTheWhole", run: sharesSum},
		{name: "Racing", run: racing},
		{name: "Window", run: window},
		{name: "RetryIn", run: retryIn},
		{name: "LoweredAndRaised", run: loweredAndRaised},
		{name: "MoreAndFewerShards", run: otherShards},
		{name: "OtherShardsUnderHolders", run: otherShardsUnderHolders},
		{name: "CreditNeverExceedsTheLimit", run: creditNeverExceeds},
		{name: "CreditOfWhatIsCounted", run: creditOfWhatIsCounted},
		{name: "LostSlotsComeBack", run: lostSlotsComeBack},
		{name: "ReconcileKeepsWhatIsHeld", run: reconcileKeeps},
		{name: "KeysAtRestAreForgotten", run: keysAtRest, truth: true},
		{name: "OnlyTheOwnerIsAdmitted", run: onlyTheOwner, truth: true},
		{name: "AskingTwice", run: askingTwice},
		{name: "Traffic", run: traffic},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			t.Cleanup(cancel)
			b := fresh(t)
			if b.Peer == nil {
				b.Peer = func(*testing.T) limiter.Limiter { return b.Limiter }
			}
			if b.Vanish == nil {
				b.Vanish = func(*testing.T, []limiter.Slot) {}
			}
			if c.truth && !b.Truth {
				return
			}
			c.run(&suite{T: t, ctx: ctx, b: b})
		})
	}
}

// suite is one test on one fresh backend.
type suite struct {
	*testing.T
	ctx context.Context
	b   Backend
}

func (s *suite) sync(c limiter.Config) limiter.Config {
	s.Helper()
	inForce, err := s.b.Limiter.SyncConfig(s.ctx, c)
	if err != nil {
		s.Fatal(err)
	}
	return inForce
}

func (s *suite) gates(gates ...limiter.Gate) { s.Helper(); s.sync(limiter.Config{Gates: gates}) }
func (s *suite) rates(rates ...limiter.Rate) { s.Helper(); s.sync(limiter.Config{Rates: rates}) }

func (s *suite) reconcile() limiter.Reconciled {
	s.Helper()
	r, err := s.b.Limiter.Reconcile(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	return r
}

// rows claims n rows that ask for these keys, each with weight 1.
func (s *suite) rows(n int, gate, rate string) []limiter.Request {
	s.Helper()
	rows := make([]limiter.Request, n)
	for i := range rows {
		id, claim := s.b.Claim(s.T, worker, gate)
		rows[i] = limiter.Request{ID: id, Claim: claim, Gate: gate, Rate: rate, Weight: 1}
	}
	return rows
}

// weighted are rows that ask for a rate, with these weights.
func (s *suite) weighted(rate string, weights ...float64) []limiter.Request {
	s.Helper()
	rows := s.rows(len(weights), "", rate)
	for i, w := range weights {
		rows[i].Weight = w
	}
	return rows
}

// ask admits once.
func (s *suite) ask(rows []limiter.Request) []limiter.Decision {
	s.Helper()
	d, err := s.b.Limiter.Admit(s.ctx, worker, rows)
	if err != nil {
		s.Fatal(err)
	}
	if len(d) != len(rows) {
		s.Fatalf("%d decisions for %d requests", len(d), len(rows))
	}
	return d
}

// held is what was admitted to a gate.
type held []limiter.Slot

// settle admits rows, asking again for what was only contended, and returns the places of those admitted and the slots.
func settle(ctx context.Context, l limiter.Limiter, rows []limiter.Request) (admitted []int, slots held, last []limiter.Decision, err error) {
	open := make([]int, len(rows))
	for i := range open {
		open[i] = i
	}
	last = make([]limiter.Decision, len(rows))
	for len(open) > 0 {
		ask := make([]limiter.Request, len(open))
		for i, at := range open {
			ask[i] = rows[at]
		}
		answer, err := l.Admit(ctx, worker, ask)
		if errors.Is(err, limiter.ErrContended) {
			continue
		}
		if err != nil {
			return nil, nil, nil, err
		}
		var again []int
		for i, d := range answer {
			at := open[i]
			last[at] = d
			switch d.Verdict {
			case limiter.Contended:
				again = append(again, at)
			case limiter.Admitted:
				admitted = append(admitted, at)
				if r := rows[at]; r.Gate != "" {
					slots = append(slots, limiter.Slot{ID: r.ID, Claim: r.Claim, Key: r.Gate, Shard: d.Shard})
				}
			}
		}
		open = again
	}
	slices.Sort(admitted)
	return admitted, slots, last, nil
}

// admit settles rows and expects exactly the first n to be admitted.
func (s *suite) admit(what string, n int, rows []limiter.Request) held {
	s.Helper()
	admitted, slots, last, err := settle(s.ctx, s.b.Limiter, rows)
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
	if len(admitted) != n || n > 0 && admitted[n-1] != n-1 {
		s.Fatalf("%s: admitted are %v of %d, expected the first %d; %+v", what, admitted, len(rows), n, last)
	}
	return slots
}

// end ends rows and returns what is to be credited.
func (s *suite) end(slots held) []limiter.Release {
	s.Helper()
	var released []limiter.Release
	for _, slot := range slots {
		released = append(released, limiter.Release{Slot: slot, Mark: s.b.End(s.T, slot.ID)})
	}
	return released
}

func (s *suite) credit(released []limiter.Release) {
	s.Helper()
	if err := credit(s.ctx, s.b.Limiter, released); err != nil {
		s.Fatal(err)
	}
}

// credit gives slots back, again while others are in the way, as an engine does.
func credit(ctx context.Context, l limiter.Limiter, released []limiter.Release) error {
	for {
		if err := l.Credit(ctx, released); !errors.Is(err, limiter.ErrContended) {
			return err
		}
	}
}

// giveBack ends rows and credits their slots.
func (s *suite) giveBack(slots held) {
	s.Helper()
	s.credit(s.end(slots))
}

// wantFree expects a gate's key to have exactly n free slots, and leaves it so.
func (s *suite) wantFree(what, gate string, n int) {
	s.Helper()
	s.giveBack(s.admit(what, n, s.rows(n+2, gate, "")))
}
