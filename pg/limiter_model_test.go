package pg

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gendurable/gendurable/limiter"
)

// slotHeld is a slot as the model of the limiter keeps it.
type slotHeld struct {
	limiter.Slot
	mark uint64 // 0 = its row executes
}

// limits is what the counters should hold: who has which slot, and what was taken of each rate.
type limits struct {
	t      *testing.T
	s      *Store
	l      *Limiter
	config limiter.Config
	slots  map[int64]slotHeld
	// taken are slots by key that are counted as taken: held, or released and neither credited nor counted.
	taken map[string]int
	spent map[string]float64
	// changed says that the gates' configuration was changed and that rows still hold slots of the old one: of their keys
	// nothing is promised but the limit.
	changed bool
}

var (
	gateKeys = []string{"g", "g:a"}
	rateKeys = []string{"r", "r:a"}
)

// TestLimiterModel plays random calls against the counters and a model of them in memory.
// 20 cases, about 5 s on a quiet machine.
func TestLimiterModel(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	if before := checks.Value.String(); before == checks.DefValue {
		if err := checks.Value.Set("20"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = checks.Value.Set(before) })
	}
	s := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		exec(t, s, `TRUNCATE gen_durable, gen_durable_buckets, gen_durable_bucket_configs CASCADE`)
		m := &limits{t: t, s: s, l: s.NewLimiter(), slots: map[int64]slotHeld{}, taken: map[string]int{}, spent: map[string]float64{}}
		m.config = limiter.Config{Rates: []limiter.Rate{{Name: "r", Allowed: rapid.SampledFrom([]float64{4, 7.5, 12}).Draw(rt, "burst"), Per: forAges,
			Shards: rapid.IntRange(1, 4).Draw(rt, "shards of the rate")}}}
		m.drawGate(rt)
		m.sync(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"":          m.check,
			"admit":     m.admit,
			"more":      m.admit,
			"end":       m.end,
			"credit":    m.credit,
			"reconcile": m.reconcile,
			"configure": m.configure,
		})
	})
}

func (m *limits) drawGate(rt *rapid.T) {
	limit := rapid.IntRange(1, 6).Draw(rt, "limit")
	m.config.Gates = []limiter.Gate{{Name: "g", Limit: limit, Shards: rapid.IntRange(1, min(limit, 3)).Draw(rt, "shards of the gate")}}
}

func (m *limits) sync(rt *rapid.T) {
	if _, err := m.l.SyncConfig(testContext(m.t), m.config); err != nil {
		rt.Fatal(err)
	}
}

func (m *limits) limit() int { return m.config.Gates[0].Limit }

// held counts the rows that hold slots of a key.
func (m *limits) held(key string) (n int) {
	for _, s := range m.slots {
		if s.Key == key && s.mark == 0 {
			n++
		}
	}
	return n
}

func (m *limits) admit(rt *rapid.T) {
	rows := make([]limiter.Request, rapid.IntRange(1, 5).Draw(rt, "rows"))
	for i := range rows {
		gate := rapid.SampledFrom(append([]string{""}, gateKeys...)).Draw(rt, "gate")
		rows[i].Gate, rows[i].Rate = gate, rapid.SampledFrom(append([]string{""}, rateKeys...)).Draw(rt, "rate")
		rows[i].Weight = rapid.SampledFrom([]float64{0.5, 1, 1, 2.25, 20}).Draw(rt, "weight")
		rows[i].ID, rows[i].Claim = claimGated(m.t, m.s, alice, gate)
	}
	got, err := m.l.Admit(testContext(m.t), alice, rows)
	if err != nil {
		rt.Fatal(err)
	}
	burst := m.config.Rates[0].Allowed
	place, sum, stuck := map[string]int{}, map[string]float64{}, map[string]bool{}
	before := maps.Clone(m.spent)
	for i, r := range rows {
		want := limiter.Kind("")
		if r.Gate != "" {
			place[r.Gate]++
			if place[r.Gate] > m.limit()-m.taken[r.Gate] {
				want = limiter.KindGate
			}
		}
		weight := min(r.Weight, burst)
		if m.changed && r.Gate != "" {
			want = got[i].By // of the gate only the limit is promised
			if want == limiter.KindRate {
				want = ""
			}
		}
		if want == "" && r.Rate != "" {
			sum[r.Rate] += weight
			stuck[r.Rate] = stuck[r.Rate] || sum[r.Rate] > burst-before[r.Rate]
			if stuck[r.Rate] {
				want = limiter.KindRate
			}
		}
		if got[i].By != want || (want == "") != (got[i].Verdict == limiter.Admitted) {
			rt.Fatalf("row %d of %+v: %+v, expected to be denied by %q; the model is %+v", i, rows, got[i], want, m)
		}
	}
	for i, r := range rows {
		switch {
		case got[i].Verdict == limiter.Admitted:
			if r.Rate != "" {
				m.spent[r.Rate] += min(r.Weight, burst)
			}
			if r.Gate != "" {
				m.taken[r.Gate]++
				m.slots[r.ID] = slotHeld{Slot: limiter.Slot{ID: r.ID, Claim: r.Claim, Key: r.Gate, Shard: got[i].Shard}}
				if m.held(r.Gate) > m.limit() {
					rt.Fatalf("%d hold a gate of %d", m.held(r.Gate), m.limit())
				}
			}
		default:
			endGated(m.t, m.s, r.ID)
		}
	}
}

// pick draws some of the slots, in the order of their rows.
func (m *limits) pick(rt *rapid.T, good func(slotHeld) bool) []slotHeld {
	var some []slotHeld
	for _, id := range slices.Sorted(maps.Keys(m.slots)) {
		if s := m.slots[id]; good(s) && rapid.Bool().Draw(rt, "this one") {
			some = append(some, s)
		}
	}
	return some
}

func (m *limits) end(rt *rapid.T) {
	for _, s := range m.pick(rt, func(s slotHeld) bool { return s.mark == 0 }) {
		s.mark = endGated(m.t, m.s, s.ID)
		m.slots[s.ID] = s
	}
}

// credit gives back some of the slots, and those that a reconcile has counted as well: these change nothing.
func (m *limits) credit(rt *rapid.T) {
	var released []limiter.Release
	for _, s := range m.pick(rt, func(s slotHeld) bool { return s.mark != 0 }) {
		released = append(released, limiter.Release{Slot: s.Slot, Mark: s.mark})
		if s.Claim >= 0 {
			m.taken[s.Key]--
		}
		delete(m.slots, s.ID)
	}
	if err := m.l.Credit(testContext(m.t), released); err != nil {
		rt.Fatal(err)
	}
}

func (m *limits) reconcile(rt *rapid.T) {
	if _, err := m.l.reconcile(testContext(m.t), 1, reconcileAgain); err != nil {
		rt.Fatal(err)
	}
	inUse := 0
	for _, key := range gateKeys {
		m.taken[key] = m.held(key)
		inUse += m.held(key)
	}
	m.changed = m.changed && inUse > 0
	for id, s := range m.slots {
		if s.mark != 0 {
			s.Claim = -1 // counted
			m.slots[id] = s
		}
	}
	m.checkCounters(rt)
}

func (m *limits) configure(rt *rapid.T) {
	old := m.config.Gates[0]
	m.drawGate(rt)
	m.sync(rt)
	m.changed = m.changed || old != m.config.Gates[0]
	m.reconcile(rt)
}

// check holds the counters against their bounds after every call.
func (m *limits) check(rt *rapid.T) {
	for _, key := range rateKeys {
		left := value[float64](m.t, m.s, `SELECT coalesce(sum(available), $2) FROM gen_durable_buckets WHERE kind = 'rate' AND key = $1`, key, m.config.Rates[0].Allowed)
		if want := m.config.Rates[0].Allowed - m.spent[key]; left < want-1e-6 || left > want+1e-6 {
			rt.Fatalf("%s has %v tokens left, expected %v", key, left, want)
		}
	}
	for _, key := range gateKeys {
		free := value[float64](m.t, m.s, `SELECT coalesce(sum(available), 0) FROM gen_durable_buckets WHERE kind = 'conc' AND key = $1`, key)
		if held := m.held(key); int(free) > max(0, m.limit()-held) {
			rt.Fatalf("%s has %v free slots of %d, and %d holders", key, free, m.limit(), held)
		}
	}
}

// checkCounters expects a gate's free slots to be exact.
func (m *limits) checkCounters(rt *rapid.T) {
	for _, key := range gateKeys {
		got := value[string](m.t, m.s, `SELECT count(*) || ' ' || coalesce(sum(available), 0) FROM gen_durable_buckets WHERE kind = 'conc' AND key = $1`, key)
		held := m.held(key)
		if held == 0 && got != "0 0" || held > 0 && got[2:] != fmt.Sprint(max(0, m.limit()-held)) {
			rt.Fatalf("after a reconcile %s has shards and free slots %q, expected %d of %d to be held", key, got, held, m.limit())
		}
	}
}
