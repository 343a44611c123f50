package pg

import (
	"testing"

	"github.com/gendurable/gendurable/limiter"
)

// TestRoundTripsOfTheLimiter counts what its calls cost once their statements are prepared.
func TestRoundTripsOfTheLimiter(t *testing.T) {
	direct := open(t)
	s, trips := counted(t, direct)
	ctx := testContext(t)
	l := s.NewLimiter()
	own := limiter.Config{
		Gates: []limiter.Gate{{Name: "g", Limit: 50, Shards: 4}},
		Rates: []limiter.Rate{{Name: "r", Allowed: 500, Per: forAges, Shards: 4}},
	}
	var rows []limiter.Request
	var d []limiter.Decision
	for _, c := range []struct {
		name    string
		want    int
		prepare func()
		do      func() error
	}{
		{"sync", 1, nil, func() error { _, err := l.SyncConfig(ctx, own); return err }},
		{"read", 1, nil, func() error { _, err := l.SyncConfig(ctx, limiter.Config{}); return err }},
		{"admit without limits", 0, nil, func() error { _, err := l.Admit(ctx, alice, make([]limiter.Request, 3)); return err }},
		{"admit to both", 1, func() { rows = asking(t, direct, 30, "g:a", "r:a") },
			func() (err error) { d, err = l.Admit(ctx, alice, rows); return err }},
		{"admit to many keys", 1, func() {
			for _, key := range []string{"g:b", "g:c", "g:d"} {
				rows = append(rows, asking(t, direct, 30, key, "r")...)
			}
		}, func() (err error) { d, err = l.Admit(ctx, alice, rows); return err }},
		{"credit", 1, func() {
			for _, r := range rows {
				endGated(t, direct, r.ID)
			}
		}, func() error {
			var released []limiter.Release
			for i, r := range rows {
				if d[i].Verdict == limiter.Admitted {
					released = append(released, limiter.Release{Slot: limiter.Slot{Key: r.Gate, Shard: d[i].Shard}, Mark: 3})
				}
			}
			return l.Credit(ctx, released)
		}},
		{"credit nothing", 0, nil, func() error { return l.Credit(ctx, nil) }},
		{"reconcile without gates", 2, func() { exec(t, direct, `DELETE FROM gen_durable_buckets WHERE kind = 'conc'`) },
			func() error { _, err := l.Reconcile(ctx); return err }},
		{"remove", 1, nil, func() error { return l.RemoveConfig(ctx, limiter.Name{Kind: limiter.KindGate, Name: "g"}) }},
	} {
		var got int
		for range 2 { // the first run prepares
			if c.prepare != nil {
				c.prepare()
			}
			trips.take()
			if err := c.do(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			got = trips.take()
		}
		if got != c.want {
			t.Errorf("%s took %d round trips, expected %d", c.name, got, c.want)
		}
	}
}
