package pg

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestRoundTripsOfTheEngine counts what the hot paths cost once their statements are prepared on the connection.
func TestRoundTripsOfTheEngine(t *testing.T) {
	t.Parallel()
	direct := open(t)
	s, trips := counted(t, direct)
	ctx := testContext(t)
	c := s.NewCommitter("trips")
	want := func(what string, n int) {
		t.Helper()
		if got := trips.take(); got != n {
			t.Errorf("%s took %d round trips, expected %d", what, got, n)
		}
	}
	for round := range 2 {
		exec(t, direct, `TRUNCATE gen_durable CASCADE`)
		request := ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: 1000}
		check := func(what string, n int) {
			t.Helper()
			if round == 0 {
				trips.take() // the first use prepares
				return
			}
			want(what, n)
		}
		trips.take()
		if _, err := s.Claim(ctx, request); err != nil {
			t.Fatal(err)
		}
		check("an empty claim", 1)
		looking := request
		looking.Report = &ClaimReport{Horizon: time.Hour}
		if _, err := s.Claim(ctx, looking); err != nil {
			t.Fatal(err)
		}
		check("an empty claim that looks ahead", 1)
		put(t, direct, 900)
		rows, err := s.Claim(ctx, request)
		if err != nil || len(rows) != 900 {
			t.Fatalf("claimed %d, %v", len(rows), err)
		}
		check("a claim of rows without inbox and children", 1)
		var outcomes []Outcome
		for i, row := range rows {
			o := outcome(row, alice, Kind(i%7))
			if o.Kind == KindChildren {
				o.Children = []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: "default"}}
			}
			o.Handed, o.HasInbox = []int64{1, 2}, true
			outcomes = append(outcomes, o)
		}
		commitAll(t, c, outcomes...)
		check("a flush of every kind with every rider", 1)
		for range 3 { // children that end: joins
			if rows, err = s.Claim(ctx, request); err != nil || len(rows) == 0 {
				t.Fatalf("claimed %d, %v", len(rows), err)
			}
			if round == 1 {
				if got := trips.take(); got > 2 {
					t.Errorf("a claim took %d round trips", got)
				}
			}
			outcomes = nil
			for _, row := range rows {
				kind := KindRetry
				if row.ParentID != 0 {
					kind = KindDone
				}
				outcomes = append(outcomes, outcome(row, alice, kind))
			}
			trips.take()
			commitAll(t, c, outcomes...)
			check("a flush with joins", 1)
		}
		put(t, direct, 10, func(i *Insertion) { i.Queue = "signals" })
		exec(t, direct, `UPDATE gen_durable SET has_inbox = true, has_children = true WHERE queue = 'signals'`)
		request.Queue = "signals"
		if rows, err = s.Claim(ctx, request); err != nil || len(rows) != 10 {
			t.Fatalf("claimed %d, %v", len(rows), err)
		}
		check("a claim of rows with inboxes and children", 2)
		if _, err := s.Heartbeat(ctx, alice, time.Minute, claimedIDs(rows)); err != nil {
			t.Fatal(err)
		}
		check("a heartbeat", 1)
		if _, err := s.Release(ctx, alice, refs(rows)); err != nil {
			t.Fatal(err)
		}
		check("a release", 1)
	}
}

// TestWithoutNamedStatements runs the engine's statements the way a transaction-pooling proxy needs it: no named
// statement, no session setting, each transaction perhaps on another server connection (trap 22).
func TestWithoutNamedStatements(t *testing.T) {
	t.Parallel()
	direct, host := openWithHost(t, Options{})
	cfg := host.Config()
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	cfg.MaxConns = 3
	// What a server connection remembers is wiped whenever another transaction may get it.
	cfg.AfterRelease = func(conn *pgx.Conn) bool {
		_, err := conn.PgConn().Exec(testContext(t), "DISCARD ALL").ReadAll()
		return err == nil
	}
	pooled, err := pgxpool.NewWithConfig(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pooled.Close)
	engine, err := EnginePool(testContext(t), pooled, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	s, err := Open(testContext(t), engine, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := s.NewCommitter("proxied")
	for range 3 {
		exec(t, direct, `TRUNCATE gen_durable CASCADE`)
		f := newFamily(t, s, c)
		f.check(t, s, flushAll(t, c, f.outcomes...), false)
		late := claim(t, s, alice, 10)
		signal(t, s, late[0].ID, "go")
		if beats, err := s.Heartbeat(testContext(t), alice, time.Minute, claimedIDs(late)); err != nil || beats[0].State != Extended {
			t.Errorf("the beat is %+v, %v", beats, err)
		}
		commitAll(t, c, outcome(late[0], alice, KindDone))
		wantInbox(t, s, late[0].ID)
		reap(t, s)
	}
}
