package redislimiter

import (
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gendurable/gendurable/limiter"
)

// TestRedisLosesEverything: a restart without its data gives nobody more than the limits, and heals by itself.
func TestRedisLosesEverything(t *testing.T) {
	t.Parallel()
	s := start(t)
	first, second := newLimiter(t, s.client(t), Options{}), newLimiter(t, s.client(t), Options{})
	own := limiter.Config{
		Gates: []limiter.Gate{{Name: "g", Limit: 3}},
		Rates: []limiter.Rate{{Name: "r", Allowed: 5, Per: ages, Shards: 2}, {Name: "fast", Allowed: 1e6, Per: time.Second}},
	}
	before := configure(t, first, own)
	configure(t, second, limiter.Config{})
	rows := asking(1, 2, "g", "r")
	want(t, "two of three", 2, first, rows)

	s.restart(t)
	d, err := second.Admit(t.Context(), "", asking(10, 1, "g", ""))
	if err != nil {
		t.Fatal(err)
	}
	if d[0].Verdict != limiter.Saturated || d[0].By != limiter.KindGate || d[0].RetryIn <= 0 || d[0].RetryIn > time.Hour {
		t.Fatalf("a gate of which nobody knows the holders: %+v", d[0])
	}
	if after := configure(t, second, limiter.Config{}); !reflect.DeepEqual(before, after) {
		t.Errorf("in force are %+v, before the loss it was %+v", after, before)
	}
	want(t, "rates begin empty", 0, second, asking(10, 2, "", "r"))
	eventually(t, "tokens come", func() bool { return granted(t, second, asking(10, 1, "", "fast")) == 1 })
	renew(t, first, rows, time.Hour) // the heartbeat of who holds them
	want(t, "those that have been renewed", 2, first, rows)
	want(t, "the others, as long as the gate is closed", 0, first, asking(20, 2, "g", ""))
	// As when the lease is over.
	if err := first.client.HSet(t.Context(), first.limits(), "shut", 1).Err(); err != nil {
		t.Fatal(err)
	}
	want(t, "the one slot that is free", 1, second, asking(30, 3, "g", ""))

	// A second loss is one of its own, and so is one that a reconcile finds.
	s.restart(t)
	if _, err := first.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := configure(t, first, limiter.Config{}); !reflect.DeepEqual(before, after) {
		t.Errorf("in force are %+v, before the loss it was %+v", after, before)
	}
	want(t, "closed again", 0, second, asking(40, 3, "g", ""))
}

// TestLossHealsInTime: with nothing but admissions and renewals the gate opens after a lease, and nobody is admitted
// beside those who hold it.
func TestLossHealsInTime(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := newLimiter(t, s.client(t), Options{Lease: 300 * time.Millisecond})
	configure(t, l, gate(3))
	rows := asking(1, 2, "g", "")
	want(t, "two of three", 2, l, rows)
	s.restart(t)
	renew(t, l, rows, time.Hour)
	next := 10
	eventually(t, "the gate opens", func() bool {
		next += 2
		n := granted(t, l, asking(next, 2, "g", ""))
		if n > 1 {
			t.Fatalf("%d were admitted, and one slot is free", n)
		}
		return n == 1
	})
}

// TestLostWhileManyAsk: whoever finds the loss first, the others follow, and nobody is told that there are no limits.
func TestLostWhileManyAsk(t *testing.T) {
	t.Parallel()
	s := start(t)
	const processes = 6
	peers := make([]*Limiter, processes)
	for i := range peers {
		peers[i] = newLimiter(t, s.client(t), Options{Lease: time.Hour})
		configure(t, peers[i], limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 2}}, Rates: []limiter.Rate{{Name: "r", Allowed: 2, Per: ages}}})
	}
	s.restart(t)
	var all sync.WaitGroup
	for i, peer := range peers {
		for j := range 4 {
			all.Go(func() {
				rows := append(asking(1000*i+10*j, 2, "g", "r"), asking(1000*i+10*j+5, 2, "", "r")...)
				d, err := peer.Admit(t.Context(), "", rows)
				if err != nil {
					t.Error(err)
				}
				for _, one := range d {
					if one.Verdict != limiter.Saturated {
						t.Errorf("after a loss: %+v", one)
					}
				}
			})
		}
	}
	all.Wait()
	for i, peer := range peers {
		if peer.known() == "" || peer.known() != peers[0].known() {
			t.Errorf("process %d knows the era %q, another %q", i, peer.known(), peers[0].known())
		}
	}
}

// TestColdKeys: several clients on one cold key are granted exactly what it has, time after time.
func TestColdKeys(t *testing.T) {
	t.Parallel()
	s := start(t)
	const processes, burst = 8, 11
	peers := make([]*Limiter, processes)
	for i := range peers {
		peers[i] = newLimiter(t, s.client(t), Options{})
	}
	configure(t, peers[0], limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: burst}}, Rates: []limiter.Rate{{Name: "r", Allowed: burst, Per: ages}}})
	for round := range 20 {
		gate, rate := fmt.Sprintf("g:%d", round), fmt.Sprintf("r:%d", round)
		var total atomic.Int64
		var all sync.WaitGroup
		begin := make(chan struct{})
		for i, peer := range peers {
			all.Go(func() {
				<-begin
				for one := range 2 {
					total.Add(int64(granted(t, peer, asking(10000*round+100*i+10*one, 2, gate, rate))))
				}
			})
		}
		close(begin)
		all.Wait()
		if total.Load() != burst {
			t.Fatalf("%d were admitted to a cold key, expected %d", total.Load(), burst)
		}
	}
}
