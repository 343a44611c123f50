package gendurable_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

// The network stands still for longer than a lease and then delivers what was sent meanwhile, a lease sweep among it.
func TestAStallThatOutlastsLeasesRepeatsNoStep(t *testing.T) {
	t.Parallel()
	direct := database(t)
	proxy, err := devpg.NewProxy(direct.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	g := newGate()
	slow := g.machine("slow")
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{slow}, Logger: quietly(),
		Lease: 3 * time.Second, Heartbeat: time.Second, LeaseSweep: 10 * time.Millisecond,
	})
	id := insert(t, engine, slow.New(number{5}))
	<-g.entered
	for range 2 {
		eventually(t, "the reaper trusts the database", func() bool {
			return count(t, direct, `SELECT count(*) FROM gen_durable WHERE lease_expires_at > now() + interval '2.5 seconds'`) == 1
		})
		proxy.Pause()
		eventually(t, "the lease is over", func() bool {
			return count(t, direct, `SELECT count(*) FROM gen_durable WHERE lease_expires_at < now() - interval '1 second'`) == 1
		})
		proxy.Resume()
		eventually(t, "the lease is extended, or lost", func() bool {
			return count(t, direct, `SELECT count(*) FROM gen_durable WHERE lease_expires_at > now() OR attempt > 0`) == 1
		})
	}
	close(g.open)
	if s := await(t, engine, id); string(s.Result) != "5" || g.runs.Load() != 1 {
		t.Errorf("%+v after %d runs", s, g.runs.Load())
	}
}

// The database is away for longer than a lease; a step ends meanwhile, and its outcome waits.
func TestAnOutcomeOutlastsAnOutageLongerThanItsLease(t *testing.T) {
	t.Parallel()
	direct := database(t)
	proxy, err := devpg.NewProxy(direct.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	g := newGate()
	slow := g.machine("slow")
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{slow}, Logger: quietly(),
		Lease: 3 * time.Second, Heartbeat: time.Second, LeaseSweep: 10 * time.Millisecond,
	})
	id := insert(t, engine, slow.New(number{5}))
	<-g.entered
	proxy.Refuse(true)
	proxy.Cut()
	close(g.open)
	eventually(t, "the lease is over", func() bool {
		return count(t, direct, `SELECT count(*) FROM gen_durable WHERE lease_expires_at < now() - interval '1 second'`) == 1
	})
	proxy.Refuse(false)
	if s := await(t, engine, id); string(s.Result) != "5" || g.runs.Load() != 1 {
		t.Errorf("%+v after %d runs", s, g.runs.Load())
	}
}
