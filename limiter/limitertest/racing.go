package limitertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gendurable/gendurable/limiter"
)

func (s *suite) eventually(what string, ok func() bool) {
	s.Helper()
	for !ok() {
		if s.ctx.Err() != nil {
			s.Fatalf("timed out waiting for %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// racing lets eight pickers meet cold keys.
func racing(s *suite) {
	const pickers, each, burst = 8, 6, 13
	s.sync(limiter.Config{
		Gates: []limiter.Gate{{Name: "g1", Limit: burst}, {Name: "g4", Limit: burst, Shards: 4}},
		Rates: []limiter.Rate{{Name: "r1", Allowed: burst, Per: ages}, {Name: "r4", Allowed: burst, Per: ages, Shards: 4}},
	})
	peers := make([]limiter.Limiter, pickers)
	for i := range peers {
		peers[i] = s.b.Peer(s.T)
	}
	for round := range 2 {
		for _, keys := range [][2]string{{"g1", ""}, {"g4", ""}, {"", "r1"}, {"", "r4"}, {"g4", "r4:both"}, {"g1:other", "r1:other"}} {
			gate, rate := keys[0], keys[1]
			if gate != "" {
				gate = fmt.Sprintf("%s:%d-%s", gate, round, rate)
			}
			if rate != "" {
				rate = fmt.Sprintf("%s:%d", rate, round)
			}
			var total atomic.Int64
			start := make(chan struct{})
			var all sync.WaitGroup
			for _, peer := range peers {
				rows := s.rows(each, gate, rate)
				all.Go(func() {
					<-start
					admitted, _, _, err := settle(s.ctx, peer, rows)
					if err != nil {
						s.Errorf("a picker of %q and %q: %v", gate, rate, err)
					}
					total.Add(int64(len(admitted)))
				})
			}
			close(start)
			all.Wait()
			if total.Load() != burst {
				s.Errorf("%d pickers of %q and %q were granted %d, expected exactly %d", pickers, gate, rate, total.Load(), burst)
			}
		}
	}
}

// window holds what a rate grants against the time that it took.
func window(s *suite) {
	const perSecond, burst = 400, 20
	s.rates(limiter.Rate{Name: "r", Allowed: perSecond, Per: time.Second, Burst: burst, Shards: 2})
	var granted atomic.Int64
	var all sync.WaitGroup
	peers := []limiter.Limiter{s.b.Peer(s.T), s.b.Peer(s.T), s.b.Peer(s.T)}
	rows := s.rows(3, "", "r")
	begun := time.Now()
	for _, peer := range peers {
		all.Go(func() {
			for granted.Load() < 5*burst && s.ctx.Err() == nil {
				d, err := peer.Admit(s.ctx, worker, rows)
				if errors.Is(err, limiter.ErrContended) {
					continue
				}
				if err != nil {
					s.Error(err)
					return
				}
				for _, one := range d {
					if one.Verdict == limiter.Admitted {
						granted.Add(1)
					}
				}
			}
		})
	}
	all.Wait()
	took := time.Since(begun).Seconds()
	if most := burst + perSecond*took; float64(granted.Load()) > most+1e-6 {
		s.Errorf("granted %d in %.3f s, at most %.1f are allowed", granted.Load(), took, most)
	}
	if granted.Load() < 5*burst {
		s.Errorf("granted %d in %.3f s: nothing comes after the burst", granted.Load(), took)
	}
}

// retryIn waits for as long as it is told, and is admitted then.
func retryIn(s *suite) {
	s.rates(limiter.Rate{Name: "r", Allowed: 20, Per: time.Second, Burst: 4, Shards: 2})
	s.admit("the burst", 1, s.weighted("r", 4))
	heavy := s.weighted("r", 3, 1)
	d := s.ask(heavy)
	for d[0].Verdict == limiter.Admitted { // so slow is the machine that the tokens are there by now; those are spent as well
		d = s.ask(heavy)
	}
	if d[0].Verdict != limiter.Saturated || d[0].RetryIn <= 0 || d[0].RetryIn > 150*time.Millisecond+time.Millisecond || d[1].RetryIn != d[0].RetryIn {
		s.Fatalf("three of twenty a second: %+v", d)
	}
	<-time.After(d[0].RetryIn)
	if d = s.ask(heavy); d[0].Verdict != limiter.Admitted {
		s.Errorf("after the time was over: %+v", d)
	}
}

// traffic is everything at once: admissions to gates with and without rates, ends with and without a credit, late credits,
// and reconciles by several. Holders are counted on the way, by what they hold and not by what the backend says.
func traffic(s *suite) {
	const limit, burst, rounds = 5, 60, 25
	s.sync(limiter.Config{
		Gates: []limiter.Gate{{Name: "g", Limit: limit, Shards: 2}},
		Rates: []limiter.Rate{{Name: "r", Allowed: burst, Per: ages, Shards: 3}},
	})
	var holders [2]atomic.Int64
	var tokens atomic.Int64
	var pickers, reconcilers sync.WaitGroup
	stop := make(chan struct{})
	for p := range 4 {
		peer := s.b.Peer(s.T)
		rnd := rand.New(rand.NewPCG(1, uint64(p)))
		pickers.Go(func() {
			var late []limiter.Release
			for range rounds {
				at := rnd.IntN(2)
				rate := []string{"", "r"}[rnd.IntN(2)]
				rows := s.rows(1+rnd.IntN(4), fmt.Sprintf("g:%d", at), rate)
				_, slots, _, err := settle(s.ctx, peer, rows)
				if err != nil {
					s.Error(err)
					return
				}
				if n := holders[at].Add(int64(len(slots))); n > limit {
					s.Errorf("%d hold slots of a gate of %d", n, limit)
				}
				if rate != "" {
					tokens.Add(int64(len(slots)))
				}
				holders[at].Add(-int64(len(slots)))
				released := s.end(slots)
				switch rnd.IntN(4) {
				case 0: // a crash before the credit
					s.b.Vanish(s.T, slots)
				case 1:
					late = append(late, released...)
				default:
					if err := credit(s.ctx, peer, append(released, late...)); err != nil {
						s.Error(err)
					}
					late = nil
				}
			}
			for _, lost := range late {
				s.b.Vanish(s.T, []limiter.Slot{lost.Slot})
			}
		})
	}
	for range 2 {
		peer := s.b.Peer(s.T)
		reconcilers.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				if _, err := peer.Reconcile(s.ctx); err != nil {
					s.Error(err)
				}
			}
		})
	}
	pickers.Wait()
	close(stop)
	reconcilers.Wait()
	s.reconcile()
	for _, gate := range []string{"g:0", "g:1"} {
		s.wantFree("when all is quiet", gate, limit)
	}
	s.admit("the tokens that are left", burst-int(tokens.Load()), s.rows(burst+1, "", "r"))
}
