package redislimiter

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/limiter/limitertest"
)

// newLimiter makes a limiter, with leases that do not end during a test unless o says otherwise.
func newLimiter(t testing.TB, client redis.UniversalClient, o Options) *Limiter {
	t.Helper()
	if o.Lease == 0 {
		o.Lease = time.Hour
	}
	l, err := New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// vanish makes the leases of slots end.
func vanish(t testing.TB, l *Limiter, slots []limiter.Slot) {
	t.Helper()
	for _, s := range slots {
		at := l.slot(s)
		if err := l.client.ZAddXX(t.Context(), l.holders(at.gate), redis.Z{Score: 1, Member: at.row}).Err(); err != nil {
			t.Error(err)
		}
	}
}

// TestConformance runs the suite of package limitertest against a server, and against one that is a cluster, where every
// script's keys have to be in one hash slot. About 3 s.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) func(testing.TB) redis.UniversalClient{
		"Single": func(t *testing.T) func(testing.TB) redis.UniversalClient {
			s := start(t)
			return func(t testing.TB) redis.UniversalClient { return s.client(t) }
		},
		"Cluster": func(t *testing.T) func(testing.TB) redis.UniversalClient { return startCluster(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := start(t)
			limitertest.Run(t, func(t *testing.T) limitertest.Backend {
				o := Options{Namespace: namespace()}
				own := newLimiter(t, client(t), o)
				var ids atomic.Int64
				return limitertest.Backend{
					Limiter:   own,
					Unsharded: true,
					Peer:      func(t *testing.T) limiter.Limiter { return newLimiter(t, client(t), o) },
					Claim:     func(*testing.T, string, string) (int64, int) { return ids.Add(1), 1 },
					End:       func(*testing.T, int64) uint64 { return 0 },
					Vanish:    func(t *testing.T, slots []limiter.Slot) { vanish(t, own, slots) },
				}
			})
		})
	}
}
