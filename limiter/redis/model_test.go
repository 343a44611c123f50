package redislimiter

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gendurable/gendurable/limiter"
)

// model is what Redis should hold. In its rates no token comes while a test runs, and weights are halves, so that its
// numbers are exact.
type model struct {
	l    *Limiter
	size map[limiter.Name]float64
	// holders are the rows that hold slots, by gate's key; ended those that were credited.
	holders map[string]map[int64]bool
	ended   []limiter.Release
	tokens  map[string]float64 // of rates' keys; those without are full, or empty after a loss
	lost    bool
	next    int64
}

var (
	modelGates = []string{"", "g", "g:a", "h:a"}
	modelRates = []string{"", "r", "r:a", "s"}
)

// TestModel plays random calls against Redis and a model of it in memory, the loss of everything included.
// 30 cases, about 3 s on a quiet machine.
func TestModel(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	if before := checks.Value.String(); before == checks.DefValue {
		if err := checks.Value.Set("30"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = checks.Value.Set(before) })
	}
	client := start(t).client(t)
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{l: newLimiter(t, client, Options{Namespace: namespace()}), size: map[limiter.Name]float64{},
			holders: map[string]map[int64]bool{}, tokens: map[string]float64{}}
		m.configure(t, rt)
		rt.Repeat(map[string]func(*rapid.T){
			"admit":     func(rt *rapid.T) { m.admit(t, rt) },
			"credit":    func(rt *rapid.T) { m.credit(t, rt) },
			"vanish":    func(rt *rapid.T) { m.vanish(t, rt) },
			"renew":     func(*rapid.T) { m.renew(t) },
			"reconcile": func(*rapid.T) { m.reconcile(t) },
			"configure": func(rt *rapid.T) { m.configure(t, rt) },
			"lose":      func(rt *rapid.T) { m.lose(t, rt) },
			"":          func(rt *rapid.T) { m.check(t, rt) },
		})
	})
}

// configure sets a size for each of some limits; h may stay unknown.
func (m *model) configure(t *testing.T, rt *rapid.T) {
	var c limiter.Config
	for _, name := range []string{"g", "h"} {
		if n := rapid.IntRange(0, 4).Draw(rt, "size of "+name); n > 0 {
			c.Gates = append(c.Gates, limiter.Gate{Name: name, Limit: n})
			m.size[limiter.Name{Kind: limiter.KindGate, Name: name}] = float64(n)
		}
	}
	for _, name := range []string{"r", "s"} {
		if n := rapid.SampledFrom([]float64{0, 2, 3.5, 8}).Draw(rt, "burst of "+name); n > 0 {
			c.Rates = append(c.Rates, limiter.Rate{Name: name, Allowed: n, Per: ages})
			m.size[limiter.Name{Kind: limiter.KindRate, Name: name}] = n
		}
	}
	if inForce := configure(t, m.l, c); len(inForce.Gates)+len(inForce.Rates) != len(m.size) {
		rt.Fatalf("in force are %+v, expected %v", inForce, m.size)
	}
}

func (m *model) of(kind limiter.Kind, key string) (float64, bool) {
	size, ok := m.size[limiter.Name{Kind: kind, Name: limiter.NameOf(key)}]
	return size, ok
}

// left is what a rate's key has.
func (m *model) left(key string) float64 {
	burst, _ := m.of(limiter.KindRate, key)
	if tokens, ok := m.tokens[key]; ok {
		return min(burst, tokens)
	}
	if m.lost {
		return 0
	}
	return burst
}

func (m *model) admit(t *testing.T, rt *rapid.T) {
	rows := make([]limiter.Request, rapid.IntRange(1, 6).Draw(rt, "rows"))
	for i := range rows {
		m.next++
		rows[i] = limiter.Request{ID: m.next, Claim: 1, Gate: rapid.SampledFrom(modelGates).Draw(rt, "gate"),
			Rate: rapid.SampledFrom(modelRates).Draw(rt, "rate"), Weight: float64(rapid.IntRange(-1, 6).Draw(rt, "halves")) / 2}
		if held := m.holders[rows[i].Gate]; len(held) > 0 && rapid.IntRange(0, 4).Draw(rt, "again") == 0 {
			rows[i].ID = slices.Min(slices.Collect(maps.Keys(held)))
		}
	}
	d, err := m.l.Admit(t.Context(), "", rows)
	if err != nil {
		rt.Fatal(err)
	}
	waits := map[string]bool{}
	for i, r := range rows {
		verdict, by, key := m.decide(r, waits)
		if d[i].Verdict != verdict || d[i].By != by || d[i].Key != key {
			rt.Fatalf("row %d of %+v: %+v, expected %v by %q %q", i, rows, d[i], verdict, by, key)
		}
	}
}

// decide decides about one row, and has it pay. The rates for which a row waits are passed on to the next.
func (m *model) decide(r limiter.Request, waits map[string]bool) (limiter.Verdict, limiter.Kind, string) {
	if m.holders[r.Gate][r.ID] {
		return limiter.Admitted, "", ""
	}
	if r.Gate != "" {
		size, ok := m.of(limiter.KindGate, r.Gate)
		if !ok {
			return limiter.Unconfigured, limiter.KindGate, r.Gate
		}
		if float64(len(m.holders[r.Gate])) >= size {
			return limiter.Saturated, limiter.KindGate, r.Gate
		}
	}
	if r.Rate != "" {
		burst, ok := m.of(limiter.KindRate, r.Rate)
		if !ok {
			return limiter.Unconfigured, limiter.KindRate, r.Rate
		}
		weight, left := min(max(r.Weight, 0), burst), m.left(r.Rate)
		if waits[r.Rate] = waits[r.Rate] || weight > left; waits[r.Rate] {
			return limiter.Saturated, limiter.KindRate, r.Rate
		}
		if weight > 0 {
			m.tokens[r.Rate] = left - weight
		}
	}
	if r.Gate != "" {
		if m.holders[r.Gate] == nil {
			m.holders[r.Gate] = map[int64]bool{}
		}
		m.holders[r.Gate][r.ID] = true
	}
	return limiter.Admitted, "", ""
}

// some draws holders and takes them from the model.
func (m *model) some(rt *rapid.T) (slots []limiter.Slot) {
	for _, s := range m.running() {
		if rapid.Bool().Draw(rt, fmt.Sprint("row ", s.ID)) {
			slots = append(slots, s)
			delete(m.holders[s.Key], s.ID)
		}
	}
	return slots
}

// running are all holders.
func (m *model) running() (slots []limiter.Slot) {
	for _, key := range modelGates {
		for _, id := range slices.Sorted(maps.Keys(m.holders[key])) {
			slots = append(slots, limiter.Slot{ID: id, Claim: 1, Key: key})
		}
	}
	return slots
}

// credit gives back some slots, together with all that were given back before.
func (m *model) credit(t *testing.T, rt *rapid.T) {
	for _, s := range m.some(rt) {
		m.ended = append(m.ended, limiter.Release{Slot: s})
	}
	if err := m.l.Credit(t.Context(), m.ended); err != nil {
		rt.Fatal(err)
	}
}

func (m *model) vanish(t *testing.T, rt *rapid.T) {
	vanish(t, m.l, m.some(rt))
}

func (m *model) renew(t *testing.T) {
	if err := m.l.Renew(t.Context(), m.running(), time.Hour); err != nil {
		t.Fatal(err)
	}
}

func (m *model) reconcile(t *testing.T) {
	if _, err := m.l.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key, tokens := range m.tokens {
		if burst, _ := m.of(limiter.KindRate, key); tokens >= burst && !m.lost {
			delete(m.tokens, key)
		}
	}
}

// lose takes everything from Redis, and waits as the heartbeats do.
func (m *model) lose(t *testing.T, rt *rapid.T) {
	c := m.l.client
	keys := []string{m.l.limits(), m.l.buckets(), m.l.used()}
	for _, gate := range modelGates {
		keys = append(keys, m.l.holders(gate))
	}
	if err := c.Del(t.Context(), keys...).Err(); err != nil {
		rt.Fatal(err)
	}
	if _, ok := m.size[limiter.Name{Kind: limiter.KindGate, Name: "g"}]; ok {
		if n := granted(t, m.l, asking(1_000_000, 3, "g", "")); n != 0 {
			rt.Fatalf("%d were admitted to a gate after a loss", n)
		}
	}
	m.renew(t)
	m.reconcile(t) // notices, if nobody has
	if err := c.HSet(t.Context(), m.l.limits(), "shut", 1).Err(); err != nil {
		rt.Fatal(err)
	}
	m.lost, m.tokens = true, map[string]float64{}
}

// check compares holders. Those whose leases have ended do not count.
func (m *model) check(t *testing.T, rt *rapid.T) {
	for _, key := range modelGates[1:] {
		n, err := m.l.client.ZCount(t.Context(), m.l.holders(key), "2", "+inf").Result()
		if err != nil || int(n) != len(m.holders[key]) {
			rt.Fatalf("%d hold slots of %s, expected %d: %v", n, key, len(m.holders[key]), err)
		}
	}
}
