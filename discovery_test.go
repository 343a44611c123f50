package gendurable_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

// In these tests nothing polls: what is found was announced.
func pollless(cfg gendurable.Config) gendurable.Config {
	cfg.Pokes, cfg.PollBusy, cfg.PollIdle = gendurable.PokePostgres, time.Hour, time.Hour
	return cfg
}

func announcing(t *testing.T, pool *pgxpool.Pool, cfg gendurable.ClientConfig) *gendurable.Client {
	t.Helper()
	cfg.Pokes = gendurable.PokePostgres
	client, err := gendurable.NewClient(t.Context(), pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// settles awaits an instance that the client inserts.
func settles(t *testing.T, client *gendurable.Client, inst fsm.Instance) gendurable.Settled {
	t.Helper()
	id, err := client.Insert(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := client.Await(ctx, id)
	if err != nil {
		t.Fatalf("await: %v", err)
	}
	return s
}

func TestAWorkerFindsAtOnceWhatAnotherProcessInserts(t *testing.T) {
	t.Parallel()
	pool := database(t)
	if _, err := pool.Exec(t.Context(), ledgerSchema); err != nil {
		t.Fatal(err)
	}
	worker(t, pool, 0, envDeaf+"=1")
	client := announcing(t, pool, gendurable.ClientConfig{})
	for i := range 5 { // the first may have been there when the worker began to listen
		if s := settles(t, client, chain(pool, "", "requeued").New(number{i})); !s.Done() {
			t.Fatalf("%+v", s)
		}
	}
	ids, err := client.InsertMany(t.Context(), []fsm.Instance{chain(pool, "", "requeued").New(number{6}), chain(pool, "", "requeued").New(number{7})})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range ids {
		if s, err := client.Await(t.Context(), r.ID); err != nil || !s.Done() {
			t.Errorf("one of many: %+v, %v", s, err)
		}
	}
	checkLedger(t, pool, 7, 0)
}

func TestASignalOfAnotherProcessWakesAtOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	waits := fsm.New[number]("waits").
		Step("park", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) { return fsm.Await("go").Then("end"), nil }).
		Step("end", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) { return fsm.Done("woken"), nil })
	engine := start(t, pool, pollless(gendurable.Config{Machines: []fsm.Definition{waits}}))
	client := announcing(t, pool, gendurable.ClientConfig{})
	id := insert(t, engine, waits.New(number{}))
	await(t, engine, id)
	if err := client.Signal(t.Context(), id, "go", nil); err != nil {
		t.Fatal(err)
	}
	if s := await(t, engine, id, gendurable.UntilTerminal()); string(s.Result) != `"woken"` {
		t.Errorf("%+v", s)
	}
}

func TestEnginesTellEachOther(t *testing.T) {
	t.Parallel()
	pool := database(t)
	child := fsm.NewJob("far", func(_ context.Context, j *fsm.JobCall[number]) (int, error) { return j.Args.N, nil }, fsm.Queue("b"))
	parent := fsm.New[number]("near", fsm.Queue("a")).
		Step("split", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.ScheduleChildren(child.New(number{1}), child.New(number{2})).Then("end"), nil
		}).
		Step("end", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.Done(len(c.Children)), nil
		})
	machines := []fsm.Definition{parent, child}
	one := start(t, pool, pollless(gendurable.Config{Machines: machines, NodeName: "one", Queues: map[string]gendurable.Queue{"a": {}}}))
	start(t, pool, pollless(gendurable.Config{Machines: machines, NodeName: "two", Queues: map[string]gendurable.Queue{"b": {}}}))
	for range 3 { // there and back again
		if s := await(t, one, insert(t, one, parent.New(number{}))); string(s.Result) != "2" {
			t.Errorf("%+v", s)
		}
	}
}

func TestWhatAStoppedEngineGivesBackIsAnnounced(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	slow := g.machine("slow")
	config := func(node string) gendurable.Config {
		return pollless(gendurable.Config{Machines: []fsm.Definition{slow}, NodeName: node, DrainTimeout: time.Millisecond})
	}
	one := start(t, pool, config("one"))
	id := insert(t, one, slow.New(number{7}))
	<-g.entered
	two := start(t, pool, config("two"))
	eventually(t, "it has looked in vain", func() bool { return two.Stats().Queues["default"].EmptyClaims >= 2 })
	stop(t, one) // which interrupts the step
	<-g.entered
	close(g.open)
	if s := await(t, two, id); string(s.Result) != "7" {
		t.Errorf("%+v", s)
	}
}

func TestEnginesOfOneNameOnTwoDatabases(t *testing.T) {
	t.Parallel()
	here, there := database(t), database(t)
	config := pollless(gendurable.Config{Machines: []fsm.Definition{double}})
	one, two := start(t, here, config), start(t, there, config)
	for range 3 {
		for pool, engine := range map[*pgxpool.Pool]*gendurable.Engine{here: one, there: two} {
			if s := settles(t, announcing(t, pool, gendurable.ClientConfig{}), double.New(number{4})); string(s.Result) != "8" {
				t.Errorf("%+v", s)
			}
			await(t, engine, insert(t, engine, double.New(number{1})))
		}
	}
	// Another name on the same database.
	if _, err := announcing(t, here, gendurable.ClientConfig{Name: "other"}).Insert(t.Context(), double.New(number{5})); err != nil {
		t.Fatal(err)
	}
	for _, engine := range []*gendurable.Engine{one, two} {
		if n := engine.Stats().NoticesHeard; n < 1 || n > 3 {
			t.Errorf("an engine heard %d announcements; 3 were for it at most", n)
		}
	}
}

// record collects a log.
type record struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) count(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.text.String(), what)
}

func TestAListenerThatIsCutGoesOn(t *testing.T) {
	t.Parallel()
	pool := database(t)
	proxy, err := devpg.NewProxy(direct(pool))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	log := new(record)
	cfg := pollless(gendurable.Config{
		Machines: []fsm.Definition{double}, ListenURL: proxy.URL(), Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	engine := start(t, pool, cfg)
	client := announcing(t, pool, gendurable.ClientConfig{})
	const outages = 2
	for i := range outages {
		settles(t, client, double.New(number{1}))
		// The first one may have been found before anybody listened. Nobody begins to once the proxy refuses.
		eventually(t, "the listener is there", func() bool {
			return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'gendurable listener'`) > 0
		})
		proxy.Refuse(true)
		eventually(t, "it is cut", func() bool { return proxy.Cut() > 0 })
		eventually(t, "it was cut, and refused", func() bool { return engine.Stats().ListenersLost >= int64(3*(i+1)) })
		id, err := client.Insert(t.Context(), double.New(number{2})) // a notice that nobody hears
		if err != nil {
			t.Fatal(err)
		}
		proxy.Refuse(false)
		if s := await(t, engine, id); string(s.Result) != "4" {
			t.Errorf("%+v", s)
		}
		settles(t, client, double.New(number{3}))
	}
	stop(t, engine)
	for _, line := range []string{"not heard just now", "heard again"} {
		if n := log.count(line); n != outages {
			t.Errorf("%d lines %q about %d outages", n, line, outages)
		}
	}
	eventually(t, "no connection is left", func() bool { // the server needs a moment to see that they are closed
		return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'gendurable%'`) == 0
	})
}

// No listener ever gets through: the poll finds everything.
func TestNothingIsLostWithoutAListener(t *testing.T) {
	t.Parallel()
	pool := database(t)
	proxy, err := devpg.NewProxy(direct(pool))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	proxy.Refuse(true)
	start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{double}, Pokes: gendurable.PokePostgres, ListenURL: proxy.URL(), Logger: quietly(),
		PollBusy: 10 * time.Millisecond, PollIdle: 50 * time.Millisecond,
	})
	client := announcing(t, pool, gendurable.ClientConfig{})
	for range 5 {
		settles(t, client, double.New(number{1}))
	}
}

// A storm of inserts costs few statements.
func TestAnnouncementsOfAStormAreFew(t *testing.T) {
	t.Parallel()
	pool := database(t)
	engine := start(t, pool, pollless(gendurable.Config{Machines: []fsm.Definition{double}, Queues: map[string]gendurable.Queue{"default": {Concurrency: 50}}}))
	const inserts = 2000
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range inserts / 8 {
				if _, err := engine.Insert(t.Context(), double.New(number{i})); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	allDone(t, pool, inserts)
	sent := engine.Stats().NoticesSent
	t.Logf("%d announcements of %d inserts", sent, inserts)
	if sent < 1 || sent > inserts/4 {
		t.Errorf("%d announcements of %d inserts", sent, inserts)
	}
}
