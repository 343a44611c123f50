package pg

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/gendurable/gendurable/limiter"
)

// gated is a claim by whoever knows of the gate "g".
func gated(limit int, change ...func(*ClaimLimits)) ClaimRequest {
	l := &ClaimLimits{Gates: NamesOf("g")}
	for _, f := range change {
		f(l)
	}
	return ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: limit, Limits: l}
}

func claimWith(t *testing.T, s *Store, r ClaimRequest) []Claimed {
	t.Helper()
	rows, err := s.Claim(testContext(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func withKey(key string) func(*Insertion)  { return func(i *Insertion) { i.ConcurrencyKey = key } }
func withRate(key string) func(*Insertion) { return func(i *Insertion) { i.RateLimit = key } }

func keysOf(rows []Claimed) (keys []string) {
	for _, r := range rows {
		keys = append(keys, r.ConcurrencyKey+r.RateLimit)
	}
	slices.Sort(keys)
	return keys
}

// TestClaimTakesGatedRows: any number of a gate's key, with a shard that is no slot; others one at a time.
func TestClaimTakesGatedRows(t *testing.T) {
	t.Parallel()
	s := open(t)
	put(t, s, 3, withKey("g:a"))
	put(t, s, 3, withKey("gg"))
	rows := claimWith(t, s, gated(10))
	if got, want := keysOf(rows), []string{"g:a", "g:a", "g:a", "gg"}; !slices.Equal(got, want) {
		t.Errorf("claimed %v, expected %v", got, want)
	}
	for _, r := range rows {
		if provisional := r.ConcurrencyShard != nil && *r.ConcurrencyShard == ProvisionalShard; provisional != (r.ConcurrencyKey == "g:a") {
			t.Errorf("a row of %s has the shard %v", r.ConcurrencyKey, r.ConcurrencyShard)
		}
	}
}

// TestClaimWithoutNewsOfAGate: whoever does not know of a gate yet leaves its keys alone, rather than run them one at a time.
func TestClaimWithoutNewsOfAGate(t *testing.T) {
	t.Parallel()
	s := open(t)
	configure(t, s, limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 3}}})
	put(t, s, 2, withKey("g:a"))
	put(t, s, 1)
	if got := keysOf(claim(t, s, alice, 10)); !slices.Equal(got, []string{""}) {
		t.Errorf("claimed %q", got)
	}
	if got := claimWith(t, s, gated(10)); len(got) != 2 {
		t.Errorf("who knows of it claimed %v", keysOf(got))
	}
}

// TestClaimLeavesOutLimits: each list leaves out what it says, and no more.
func TestClaimLeavesOutLimits(t *testing.T) {
	t.Parallel()
	s := open(t)
	configure(t, s, limiter.Config{
		Gates: []limiter.Gate{{Name: "g", Limit: 3}},
		Rates: []limiter.Rate{{Name: "r", Allowed: 3, Per: forAges}},
	})
	exec(t, s, `INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, last_refill) VALUES
		('conc', 'g:full', 0, 3, 0, NULL), ('conc', 'g:two', 0, 2, 2, NULL), ('conc', 'g:two', 1, 1, 0, NULL),
		('rate', 'r:spent', 0, 3, 0.5, now()), ('rate', 'r:some', 0, 3, 2, now())`)
	for _, key := range []string{"g:full", "g:two", "g:cold"} {
		put(t, s, 4, withKey(key))
	}
	for _, key := range []string{"r:spent", "r:some", "r:cold", "none"} {
		put(t, s, 4, withRate(key))
	}
	for _, c := range []struct {
		change func(*ClaimLimits)
		want   map[string]int
	}{
		{func(l *ClaimLimits) {}, map[string]int{"g:full": 4, "g:two": 4, "g:cold": 4, "r:spent": 4, "r:some": 4, "r:cold": 4, "none": 4}},
		{func(l *ClaimLimits) { l.BusyGates = NamesOf("g:cold", "other") }, map[string]int{"g:cold": 0}},
		{func(l *ClaimLimits) { l.ProbedGates = NamesOf("g") }, map[string]int{"g:full": 0, "g:two": 2, "g:cold": 4}},
		{func(l *ClaimLimits) { l.SpentRates = NamesOf("r:some") }, map[string]int{"r:some": 0}},
		{func(l *ClaimLimits) { l.UnknownRates = NamesOf("none") }, map[string]int{"none": 0}},
		{func(l *ClaimLimits) { l.ProbedRates = NamesOf("r") }, map[string]int{"r:spent": 0}},
		{func(l *ClaimLimits) { l.RateQuotas = map[string]int{"r:cold": 3, "none": 1} }, map[string]int{"r:cold": 3, "none": 1}},
	} {
		got := map[string]int{}
		rows := claimWith(t, s, gated(100, c.change))
		for _, key := range keysOf(rows) {
			got[key]++
		}
		for _, key := range []string{"g:full", "g:two", "g:cold", "r:spent", "r:some", "r:cold", "none"} {
			want, listed := c.want[key]
			if !listed {
				want = 4
			}
			if got[key] != want {
				t.Errorf("expected %v: claimed %d of %s", c.want, got[key], key)
			}
		}
		if _, err := s.Release(testContext(t), alice, refs(rows)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestClaimSurvey: it tells how far it looked, and a claim that begins behind that finds only what is newer, or of a priority
// that was not exhausted.
func TestClaimSurvey(t *testing.T) {
	t.Parallel()
	s := open(t)
	put(t, s, 3, withKey("k"))
	put(t, s, 1, func(i *Insertion) { i.Priority = 5 })
	put(t, s, 1, func(i *Insertion) { i.Priority, i.Delay = -7, time.Hour })
	report := ClaimReport{Survey: true}
	r := ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: 3, Report: &report}
	if rows := claimWith(t, s, r); len(rows) != 1 || report.Looked != 3 {
		t.Errorf("claimed %d rows of %d that were looked at", len(rows), report.Looked)
	}
	if want := []int16{-7, 0, 5}; !slices.Equal(report.Priorities, want) || report.At.IsZero() {
		t.Errorf("the survey says %v at %v, expected %v", report.Priorities, report.At, want)
	}
	r.Since = []Lane{{Priority: -7, Since: report.At}, {Priority: 0, Since: report.At}, {Priority: 5}}
	if rows := claimWith(t, s, r); len(rows) != 1 || rows[0].Priority != 5 {
		t.Errorf("behind the survey are %+v", rows)
	}
	put(t, s, 1)
	report = ClaimReport{Survey: true}
	if rows := claimWith(t, s, r); len(rows) != 1 || rows[0].Priority != 0 || report.At.IsZero() || report.Priorities != nil {
		t.Errorf("what came later is %+v, and the survey says %+v", rows, report)
	}
}

// TestClaimCostsItsBatch: the pages that a claim touches do not grow with what is scheduled for later at a more urgent
// priority, nor, from where a survey ended, with rows of a taken key or dead rows that an old snapshot keeps.
func TestClaimCostsItsBatch(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	put(t, s, 20, func(i *Insertion) { i.Priority = 1 })
	// Whoever reads in an old transaction keeps the dead rows.
	old, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(ctx) }()
	if _, err := old.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Exec(ctx, `SELECT count(*) FROM gen_durable`); err != nil {
		t.Fatal(err)
	}
	const many = 20_000
	exec(t, s, `INSERT INTO gen_durable (fsm, step, priority, eligible_at) SELECT 'm', 'a', -1, now() + interval '1 d' FROM generate_series(1, 20000)`)
	if n := pagesOfClaim(t, s, ClaimRequest{Limit: 10}); n > 1000 {
		t.Errorf("with %d rows for later a claim of 10 touches %d pages", many, n)
	}
	exec(t, s, `INSERT INTO gen_durable (fsm, step, priority, eligible_at) SELECT 'm', 'a', 1, now() - interval '1 h' FROM generate_series(1, 20000)`)
	exec(t, s, `UPDATE gen_durable SET status = 'done' WHERE priority = 1 AND eligible_at < now() - interval '40 min'`)
	exec(t, s, `INSERT INTO gen_durable (fsm, step, priority, eligible_at, concurrency_key) SELECT 'm', 'a', 1, now() - interval '30 min', 'k' FROM generate_series(1, 20000)`)
	exec(t, s, `UPDATE gen_durable SET status = 'executing' WHERE id = (SELECT min(id) FROM gen_durable WHERE concurrency_key = 'k')`)
	all := pagesOfClaim(t, s, ClaimRequest{Limit: 10})
	from := pagesOfClaim(t, s, ClaimRequest{Limit: 10, Since: []Lane{{-1, time.Now().Add(-20 * time.Minute)}, {1, time.Now().Add(-20 * time.Minute)}}})
	if from > 1000 || all < 10*from {
		t.Errorf("a claim of 10 touches %d pages, and %d behind what nobody can run", all, from)
	}
}

// pagesOfClaim is how many buffers a claim touches that is rolled back.
func pagesOfClaim(t *testing.T, s *Store, r ClaimRequest) int {
	t.Helper()
	r.Queue, r.Worker, r.Lease = "default", alice, time.Minute
	pages, rows := pagesAndRows(t, s, "claim", claimArgs(r)...)
	if rows != 10 {
		t.Errorf("it claimed %d rows", rows)
	}
	return pages
}

// pagesOf is how many buffers a statement touches that is rolled back and returns a row.
func pagesOf(t *testing.T, s *Store, statement string, args ...any) int {
	t.Helper()
	pages, rows := pagesAndRows(t, s, statement, args...)
	if rows != 1 {
		t.Errorf("%s returned %d rows", statement, rows)
	}
	return pages
}

func pagesAndRows(t *testing.T, s *Store, statement string, args ...any) (pages, rows int) {
	t.Helper()
	ctx := testContext(t)
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	var raw []byte
	if err := tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+s.sql(statement), args...).Scan(&raw); err != nil {
		t.Fatal(err)
	}
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
			Rows int `json:"Actual Rows"`
		}
	}
	if err := json.Unmarshal(raw, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read, plans[0].Plan.Rows
}

// TestSlotsOfTakenRows: whoever takes rows from their workers tells of the slots they held, with the transaction's id; a
// provisional shard is none, unless another limiter admits. Flushes tell the id by their verdicts.
func TestSlotsOfTakenRows(t *testing.T) {
	t.Parallel()
	s := open(t)
	var freed []limiter.Release
	s.freed = func(r []limiter.Release) { freed = append(freed, r...) }
	l := s.NewLimiter()
	configure(t, s, limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 2}}})
	for what, take := range map[string]func(rows []Claimed) error{
		"release": func(rows []Claimed) error { _, err := s.Release(testContext(t), alice, refs(rows)); return err },
		"reap": func([]Claimed) error {
			expire(t, s)
			_, err := s.ReapLeases(testContext(t), time.Time{}, 10)
			return err
		},
		"reclaim": func([]Claimed) error {
			expire(t, s)
			_, _, err := s.ReclaimStale(testContext(t), "gendurable", "alice", "00000000000000ff", time.Minute, time.Second)
			return err
		},
	} {
		freed = nil
		exec(t, s, `TRUNCATE gen_durable, gen_durable_buckets CASCADE`)
		put(t, s, 3, withKey("g"))
		rows := claimWith(t, s, gated(3))
		var asked []limiter.Request
		for _, r := range rows {
			asked = append(asked, limiter.Request{ID: r.ID, Claim: r.Claim, Gate: "g"})
		}
		if d, err := l.Admit(testContext(t), alice, asked); err != nil || verdicts(d)[limiter.Admitted] != 2 {
			t.Fatalf("%s: %v, %v", what, d, err)
		}
		if err := take(rows); err != nil {
			t.Fatal(err)
		}
		if len(freed) != 2 || freed[0].Mark == 0 || freed[0].Key != "g" || freed[0].Claim != 1 {
			t.Errorf("%s freed %+v", what, freed)
		}
		if err := l.Credit(testContext(t), freed); err != nil {
			t.Fatal(err)
		}
		if n := value[int](t, s, `SELECT available::int FROM gen_durable_buckets`); n != 2 {
			t.Errorf("%s: %d slots are free after the credit", what, n)
		}

		// Another limiter stamps nothing: then each row may have had a slot.
		freed, s.foreign = nil, true
		put(t, s, 1, withKey("g"))
		if err := take(claimWith(t, s, gated(4))); err != nil {
			t.Fatal(err)
		}
		s.foreign = false
		if len(freed) != 4 || freed[3].Mark == 0 || freed[3].Key != "g" || freed[3].Shard >= 0 {
			t.Errorf("%s of rows that another limiter may have admitted freed %+v", what, freed)
		}
	}
}

// TestFlushMarksSlots: an outcome that gives up a slot tells the transaction's id, in the same round trip; one that keeps its
// key keeps the slot; one that changes it gets a provisional shard.
func TestFlushMarksSlots(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("marks")
	put(t, s, 4, withKey("g"))
	rows := claimWith(t, s, gated(4))
	exec(t, s, `UPDATE gen_durable SET concurrency_shard = 0`)
	held := func(o Outcome) Outcome { o.SlotKey, o.SlotShard = "g", 0; return o }
	keep, change := held(outcome(rows[0], alice, KindContinue)), held(outcome(rows[1], alice, KindContinue))
	change.Key, change.NewKey, change.RateLimit, change.Weight = SetKey, "g:other", "r", 2
	if v := commitAll(t, c, keep).Verdicts[0]; v.Mark != 0 {
		t.Errorf("a kept slot is marked: %+v", v)
	}
	f := commitAll(t, c, change, held(outcome(rows[2], alice, KindDone)), outcome(rows[3], alice, KindRetry))
	if f.Verdicts[0].Mark == 0 || f.Verdicts[1].Mark != f.Verdicts[0].Mark || f.Verdicts[2].Mark != 0 {
		t.Errorf("the verdicts are %+v", f.Verdicts)
	}
	for i, want := range []string{"g 0 - 1", "g:other -1 r 2", "g - - 1", "g - - 1"} {
		if got := value[string](t, s, `SELECT concat_ws(' ', concurrency_key, coalesce(concurrency_shard::text, '-'), coalesce(rate_limit, '-'), weight)
			FROM gen_durable WHERE id = $1`, rows[i].ID); got != want {
			t.Errorf("row %d is %q, expected %q", i, got, want)
		}
	}
}
