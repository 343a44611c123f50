package pg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/limiter"
)

const forAges = 1_000_000 * time.Hour

func configure(t testing.TB, s *Store, c limiter.Config) {
	t.Helper()
	if _, err := s.NewLimiter().SyncConfig(testContext(t), c); err != nil {
		t.Fatal(err)
	}
}

// asking makes n rows that ask for these keys.
func asking(t testing.TB, s *Store, n int, gate, rate string) []limiter.Request {
	t.Helper()
	rows := make([]limiter.Request, n)
	for i := range rows {
		id, claim := claimGated(t, s, alice, gate)
		rows[i] = limiter.Request{ID: id, Claim: claim, Gate: gate, Rate: rate, Weight: 1}
	}
	return rows
}

func verdicts(d []limiter.Decision) map[limiter.Verdict]int {
	n := map[limiter.Verdict]int{}
	for _, one := range d {
		n[one.Verdict]++
	}
	return n
}

// admitting is the move that admits rows, in the session's transaction if there is one, and expects so many of each verdict.
func admitting(rows []limiter.Request, want map[limiter.Verdict]int) move {
	return func(ctx context.Context, own *Store, db DB) error {
		var d []limiter.Decision
		if tx, ok := db.(pgx.Tx); ok {
			a := newAdmission(rows)
			lines, err := tx.Query(ctx, own.sql("limit_admit"), alice, a.ids, a.claims, a.gates, a.rates, a.weights)
			if err != nil {
				return err
			}
			if err := a.read(lines); err != nil {
				return err
			}
			d = a.decisions
		} else {
			var err error
			if d, err = own.NewLimiter().Admit(ctx, alice, rows); err != nil {
				return err
			}
		}
		if got := verdicts(d); fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("verdicts %v, expected %v", got, want)
		}
		return nil
	}
}

type verdictsOf = map[limiter.Verdict]int

// TestColdKeysRace: two that meet a cold key are granted what it has, together, whichever way the first one ends.
func TestColdKeysRace(t *testing.T) {
	s := open(t)
	configure(t, s, limiter.Config{
		Rates: []limiter.Rate{{Name: "r", Allowed: 3, Per: forAges, Shards: 2}},
		Gates: []limiter.Gate{{Name: "g", Limit: 3, Shards: 2}},
	})
	for _, keys := range [][2]string{{"", "r"}, {"g", ""}, {"g:both", "r:both"}} {
		for end, left := range map[string]int{"commit": 1, "rollback": 2} {
			exec(t, s, `TRUNCATE gen_durable_buckets`)
			interleave(t, s, map[string]move{
				"first":  admitting(asking(t, s, 2, keys[0], keys[1]), verdictsOf{limiter.Admitted: 2}),
				"second": admitting(asking(t, s, 2, keys[0], keys[1]), map[int]verdictsOf{1: {limiter.Admitted: 1, limiter.Saturated: 1}, 2: {limiter.Admitted: 2}}[left]),
			}, `
				one begin
				one first
				two second blocks
				one `+end+`
				two resumes
			`)
		}
	}
}

// TestAdmitWaitsForNobody: shards and rows that others hold are passed over.
func TestAdmitWaitsForNobody(t *testing.T) {
	s := open(t)
	configure(t, s, limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 4, Shards: 2}, {Name: "one", Limit: 4}}})
	warm := append(asking(t, s, 1, "g", ""), asking(t, s, 1, "one", "")...)
	if d, err := s.NewLimiter().Admit(testContext(t), alice, warm); err != nil || verdicts(d)[limiter.Admitted] != 2 {
		t.Fatalf("%v, %v", d, err)
	}
	rows, blocked := asking(t, s, 3, "g", ""), asking(t, s, 1, "one", "")
	interleave(t, s, map[string]move{
		"shards": func(ctx context.Context, _ *Store, db DB) error {
			_, err := db.Exec(ctx, `SELECT FROM gen_durable_buckets WHERE shard = 0 FOR UPDATE`)
			return err
		},
		"rows":  locking(rows[0].ID),
		"admit": admitting(rows, verdictsOf{limiter.NotOwned: 1, limiter.Admitted: 2}),
		"none":  admitting(blocked, verdictsOf{limiter.Contended: 1}),
		"some":  admitting(blocked, verdictsOf{limiter.Admitted: 1}),
		"last":  admitting(rows, verdictsOf{limiter.Admitted: 3}),
	}, `
		other begin
		other shards
		other rows
		one   admit
		one   none
		other commit
		one   some
		one   last
	`)
}

// TestReconcileMeetsAdmit: a shard that an admission is about to debit is not counted, and one that is being counted is
// passed over by admissions.
func TestReconcileMeetsAdmit(t *testing.T) {
	s := open(t)
	ctx := testContext(t)
	configure(t, s, limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 3}}})
	first, second, third := asking(t, s, 1, "g", ""), asking(t, s, 1, "g", ""), asking(t, s, 3, "g", "")
	if _, err := s.NewLimiter().Admit(ctx, alice, first); err != nil {
		t.Fatal(err)
	}
	reconcile := func(want limiter.Reconciled) move {
		return func(ctx context.Context, own *Store, _ DB) error {
			r, err := own.NewLimiter().Reconcile(ctx)
			if err == nil && r != want {
				err = fmt.Errorf("reconciled %+v, expected %+v", r, want)
			}
			return err
		}
	}
	interleave(t, s, map[string]move{
		"admit":     admitting(second, verdictsOf{limiter.Admitted: 1}),
		"reconcile": reconcile(limiter.Reconciled{}),
		"lock": func(ctx context.Context, own *Store, db DB) error {
			_, err := db.Exec(ctx, own.sql("limit_gates_lock"), "", 10)
			return err
		},
		"contended": admitting(third, verdictsOf{limiter.Contended: 3}),
		"rest":      admitting(third, verdictsOf{limiter.Admitted: 1, limiter.Saturated: 2}),
	}, `
		one   begin
		one   admit
		other reconcile
		one   commit
		other begin
		other lock
		one   contended
		other commit
		other reconcile
		one   rest
	`)
}

// TestReconcileComesBackForWhatWasHeld: a sweep meets an admission, which holds a shard of a key whose configuration has changed. It goes
// through that page again when the shard is free: the next sweep may be far away. Where nothing has changed it does not.
func TestReconcileComesBackForWhatWasHeld(t *testing.T) {
	t.Parallel()
	direct := open(t)
	ctx := testContext(t)
	for kind, c := range map[string]struct {
		before, after limiter.Config
		gate, rate    string
		want          limiter.Reconciled
	}{
		"conc": {
			limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 2}}}, limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 5, Shards: 3}}},
			"g:a", "", limiter.Reconciled{Reshaped: 1},
		},
		"rate": {
			limiter.Config{Rates: []limiter.Rate{{Name: "r", Allowed: 3, Per: forAges}}}, limiter.Config{Rates: []limiter.Rate{{Name: "r", Allowed: 9, Per: forAges, Shards: 3}}},
			"", "r:a", limiter.Reconciled{Reshaped: 1},
		},
	} {
		exec(t, direct, `TRUNCATE gen_durable CASCADE`)
		exec(t, direct, `TRUNCATE gen_durable_buckets, gen_durable_bucket_configs`)
		configure(t, direct, c.before)
		if _, err := direct.NewLimiter().Admit(ctx, alice, asking(t, direct, 1, c.gate, c.rate)); err != nil {
			t.Fatal(err)
		}
		s, trips := counted(t, direct)
		hold := func() func() {
			tx, err := direct.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(ctx, `SELECT FROM gen_durable_buckets WHERE kind = $1 FOR UPDATE`, kind); err != nil {
				t.Fatal(err)
			}
			letGo := func() { _ = tx.Rollback(context.Background()) }
			t.Cleanup(letGo)
			return letGo
		}
		sweep := func() (reconciled chan limiter.Reconciled) {
			reconciled = make(chan limiter.Reconciled, 1)
			go func() {
				r, err := s.NewLimiter().reconcile(ctx, reconcilePage, 1000) // more often than it is held
				if err != nil {
					t.Error(err)
				}
				reconciled <- r
			}()
			return reconciled
		}
		<-sweep() // prepares the statements
		trips.take()
		letGo := hold()
		if r := <-sweep(); r != (limiter.Reconciled{}) {
			t.Errorf("%s: with nothing to do: %+v", kind, r)
		}
		if n := trips.take(); n != 2 {
			t.Errorf("%s: a sweep with nothing to do took %d round trips", kind, n)
		}
		letGo()
		configure(t, direct, c.after)
		letGo = hold()
		trips.take()
		done := sweep()
		for seen := 0; seen < 2; seen += trips.take() { // it has been there, and has gone on or come back
			if err := ctx.Err(); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Millisecond)
		}
		letGo()
		if r := <-done; r != c.want {
			t.Errorf("%s: reconciled %+v, expected %+v", kind, r, c.want)
		}
	}
}

// TestCreditWaitsInVain: it says so, and has done nothing.
func TestCreditWaitsInVain(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	configure(t, s, limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 2}}})
	rows := asking(t, s, 2, "g", "")
	if _, err := s.NewLimiter().Admit(ctx, alice, rows); err != nil {
		t.Fatal(err)
	}
	freed := []limiter.Release{{Slot: limiter.Slot{ID: rows[0].ID, Claim: rows[0].Claim, Key: "g"}, Mark: endGated(t, s, rows[0].ID)}}
	if err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.sql("limit_gates_lock"), "", 10); err != nil {
			return err
		}
		if err := s.NewLimiter().Credit(ctx, freed); !errors.Is(err, limiter.ErrContended) || errors.Is(err, limiter.ErrUncertain) {
			t.Errorf("the credit came to %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	free := func() int { return value[int](t, s, `SELECT available::int FROM gen_durable_buckets`) }
	if n := free(); n != 0 {
		t.Errorf("%d slots are free", n)
	}
	if err := s.NewLimiter().Credit(ctx, freed); err != nil || free() != 1 {
		t.Errorf("%d slots are free, %v", free(), err)
	}
}

// TestCreditMeetsReconcile: a slot whose holder had ended when its shard was counted is not freed by the credit that
// waits behind the count; one whose holder ends while it is counted is.
func TestCreditMeetsReconcile(t *testing.T) {
	s := open(t)
	configure(t, s, limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 3}}})
	rows := asking(t, s, 3, "g", "")
	if _, err := s.NewLimiter().Admit(testContext(t), alice, rows); err != nil {
		t.Fatal(err)
	}
	release := func(i int) limiter.Release {
		return limiter.Release{Slot: limiter.Slot{ID: rows[i].ID, Claim: rows[i].Claim, Key: "g"}, Mark: endGated(t, s, rows[i].ID)}
	}
	var credits []limiter.Release
	end := func(i int) move {
		return func(context.Context, *Store, DB) error {
			credits = append(credits, release(i))
			return nil
		}
	}
	interleave(t, s, map[string]move{
		"lock": func(ctx context.Context, own *Store, db DB) error {
			_, err := db.Exec(ctx, own.sql("limit_gates_lock"), "", 10)
			return err
		},
		"ends":  end(0),
		"later": end(1),
		"heal": func(ctx context.Context, own *Store, db DB) error {
			var r limiter.Reconciled
			err := db.QueryRow(ctx, own.sql("limit_gates_heal")).Scan(&r.Healed, &r.Taken, &r.Reshaped, &r.Swept)
			if err == nil && r.Healed != 1 {
				err = fmt.Errorf("healed %+v", r)
			}
			return err
		},
		"credit": func(ctx context.Context, own *Store, _ DB) error { return own.NewLimiter().Credit(ctx, credits) },
	}, `
		step   ends
		other  begin
		other  lock
		other  heal
		step   later
		credit credit blocks
		other  commit
		credit resumes
	`)
	if free := value[int](t, s, `SELECT available::int FROM gen_durable_buckets`); free != 2 {
		t.Errorf("%d slots are free of 3, one of which is held", free)
	}
}

// TestSweepMeetsAdmit: a key that is being forgotten is passed over, and then found full.
func TestSweepMeetsAdmit(t *testing.T) {
	s := open(t)
	configure(t, s, limiter.Config{Rates: []limiter.Rate{{Name: "r", Allowed: 3e6, Per: time.Second, Burst: 3, Shards: 3}}})
	if _, err := s.NewLimiter().Admit(testContext(t), alice, asking(t, s, 2, "", "r")); err != nil {
		t.Fatal(err)
	}
	rows := asking(t, s, 4, "", "r")
	configure(t, s, limiter.Config{Rates: []limiter.Rate{{Name: "r", Allowed: 3, Per: forAges, Burst: 3, Shards: 3}}})
	exec(t, s, `UPDATE gen_durable_buckets SET available = capacity`)
	interleave(t, s, map[string]move{
		"sweep": func(ctx context.Context, own *Store, db DB) error {
			_, err := db.Exec(ctx, own.sql("limit_rates_sweep"), "", 10)
			return err
		},
		"contended": admitting(rows, verdictsOf{limiter.Contended: 4}),
		"cold":      admitting(rows, verdictsOf{limiter.Admitted: 3, limiter.Saturated: 1}),
		"hold": func(ctx context.Context, _ *Store, db DB) error {
			_, err := db.Exec(ctx, `SELECT FROM gen_durable_buckets WHERE shard = 1 FOR UPDATE`)
			return err
		},
		"refill": func(ctx context.Context, _ *Store, db DB) error {
			_, err := db.Exec(ctx, `UPDATE gen_durable_buckets SET available = capacity`)
			return err
		},
	}, `
		other begin
		other sweep
		one   contended
		other commit
		one   cold
		one   refill
		one   begin
		one   hold
		other sweep
		one   commit
	`)
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable_buckets`); n != 3 {
		t.Errorf("%d shards are left of a key one of whose shards was held: expected all", n)
	}
}

// TestLimiterDoesNotDeadlock lets admissions, credits, reconciles and changes of the configuration meet on the same keys in
// all orders.
func TestLimiterDoesNotDeadlock(t *testing.T) {
	s := open(t)
	ctx := testContext(t)
	configs := []limiter.Config{}
	for shards := range 3 {
		configs = append(configs, limiter.Config{
			Gates: []limiter.Gate{{Name: "g", Limit: 6 + shards, Shards: 1 + shards}},
			Rates: []limiter.Rate{{Name: "r", Allowed: 1e5, Per: time.Second, Burst: 50, Shards: 3 - shards}},
		})
	}
	configure(t, s, configs[0])
	stop := make(chan struct{})
	var others, work sync.WaitGroup
	again := func(what func(i int) error) {
		others.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				if err := what(i); err != nil && !isState(err, "55P03") {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		again(func(int) error { _, err := s.NewLimiter().reconcile(ctx, 7, reconcileAgain); return err })
	}
	again(func(i int) error { _, err := s.NewLimiter().SyncConfig(ctx, configs[i%3]); return err })
	for w := range 4 {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(w)))
			l := s.NewLimiter()
			for range 30 {
				var rows []limiter.Request
				for range 15 {
					key := fmt.Sprint(":", rnd.IntN(12))
					rows = append(rows, asking(t, s, 1, "g"+key, "r"+key)...)
				}
				d, err := l.Admit(ctx, alice, rows)
				if err != nil {
					t.Error(err)
					continue
				}
				var released []limiter.Release
				for i, r := range rows {
					mark := endGated(t, s, r.ID)
					if d[i].Verdict == limiter.Admitted {
						released = append(released, limiter.Release{Slot: limiter.Slot{ID: r.ID, Claim: r.Claim, Key: r.Gate, Shard: d[i].Shard}, Mark: mark})
					}
				}
				rnd.Shuffle(len(released), func(i, j int) { released[i], released[j] = released[j], released[i] })
				if err := l.Credit(ctx, released); err != nil && !isState(err, "55P03") {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	close(stop)
	others.Wait()
	awaitValue(t, s, func(n int) bool { return n == 0 }, `SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()`)
	for range 2 {
		if _, err := s.NewLimiter().Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable_buckets WHERE kind = 'conc'`); n != 0 {
		t.Errorf("%d shards of gates are left that nobody holds", n)
	}
}
