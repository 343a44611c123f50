package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gendurable/gendurable/limiter"
)

// TestClaimOfRowsToBeEnded: a row whose cancel was requested is claimed whatever keeps others of its key, behind many of these,
// and takes the place of none: neither key, nor slot, nor quota.
func TestClaimOfRowsToBeEnded(t *testing.T) {
	t.Parallel()
	const many = 5000
	for _, c := range []struct {
		name      string
		key, rate string
		taken     bool // the key, by a row that executes
		change    func(*ClaimLimits)
		others    int // of the key, claimed as well
	}{
		{name: "a taken key", key: "k:a", taken: true, change: func(*ClaimLimits) {}},
		{name: "a free key", key: "k:a", change: func(*ClaimLimits) {}, others: 1},
		{name: "a gate that is not known here", key: "h:a", change: func(*ClaimLimits) {}},
		{name: "a key of a gate that was denied", key: "g:a", change: func(l *ClaimLimits) { l.BusyGates = NamesOf("g:a") }},
		{name: "a gate without free slots", key: "g:full", change: func(l *ClaimLimits) { l.ProbedGates = NamesOf("g") }},
		{name: "a gate with one", key: "g:one", change: func(l *ClaimLimits) { l.ProbedGates = NamesOf("g") }, others: 1},
		{name: "a key of a rate that was denied", rate: "r:a", change: func(l *ClaimLimits) { l.SpentRates = NamesOf("r:a") }},
		{name: "an unknown rate", rate: "r:a", change: func(l *ClaimLimits) { l.UnknownRates = NamesOf("r") }},
		{name: "a rate without tokens", rate: "r:spent", change: func(l *ClaimLimits) { l.ProbedRates = NamesOf("r") }},
		{name: "a quota", rate: "r:a", change: func(l *ClaimLimits) { l.RateQuotas = map[string]int{"r:a": 2} }, others: 2},
		{name: "gate and rate", key: "g:a", rate: "r:a", change: func(l *ClaimLimits) {
			l.BusyGates, l.SpentRates = NamesOf("g:a"), NamesOf("r:a")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			configure(t, s, limiter.Config{
				Gates: []limiter.Gate{{Name: "g", Limit: 3}, {Name: "h", Limit: 3}}, Rates: []limiter.Rate{{Name: "r", Allowed: 3, Per: forAges}},
			})
			exec(t, s, `INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, last_refill) VALUES
				('conc', 'g:full', 0, 3, 0, NULL), ('conc', 'g:one', 0, 3, 1, NULL), ('rate', 'r:spent', 0, 3, 0.5, now())`)
			if c.taken {
				put(t, s, 1, withKey(c.key))
				claimOne(t, s, bob)
			}
			exec(t, s, `INSERT INTO gen_durable (fsm, step, concurrency_key, rate_limit, eligible_at)
				SELECT 'm', 'a', nullif($1::text, ''), nullif($2::text, ''), now() - interval '1 h' + i * interval '1 ms' FROM generate_series(1, $3::int) i`,
				c.key, c.rate, many)
			last := value[int64](t, s, `SELECT max(id) FROM gen_durable`)
			first := value[int64](t, s, `SELECT min(id) FROM gen_durable WHERE status = 'runnable'`)
			exec(t, s, `UPDATE gen_durable SET cancel_requested = 'why' WHERE id IN ($1, $2)`, first, last)
			limit := 10
			if c.others > 0 { // or the batch is full before it comes to the last
				limit = many
			}
			rows := claimWith(t, s, gated(limit, c.change))
			ending := 0
			for _, r := range rows {
				if r.CancelReason == nil {
					continue
				}
				ending++
				if (r.ID != first && r.ID != last) || r.ConcurrencyKey != c.key || r.RateLimit != c.rate ||
					(r.ConcurrencyShard != nil) != (c.key != "") || c.key != "" && *r.ConcurrencyShard != ProvisionalShard {
					t.Errorf("to be ended is %+v", r)
				}
			}
			if ending != 2 || len(rows) != 2+c.others {
				t.Errorf("claimed %d rows, %d of them to be ended; expected both of these and %d others", len(rows), ending, c.others)
			}
			for _, r := range rows {
				if r.CancelReason == nil {
					continue
				}
				v := flushAll(t, s.NewCommitter("ending"), outcome(r, alice, KindFailed)).Verdicts[0]
				if v.Fate != Cancelled || v.Mark != 0 {
					t.Errorf("its end came to %+v", v)
				}
			}
		})
	}
}

// TestReleaseTellsOfCancels: a cancel and the release of the row, in either order: it is ended by the cancel, or the release tells
// that a claim has to end it.
func TestReleaseTellsOfCancels(t *testing.T) {
	t.Parallel()
	s := open(t)
	id := put(t, s, 1, withKey("g:a"))[0]
	var cancelled CancelResult
	var ending int
	var rows []Claimed
	moves := map[string]move{
		"cancel": func(ctx context.Context, s *Store, db DB) (err error) {
			cancelled, err = s.Cancel(ctx, db, id, "why")
			return err
		},
		"release": func(ctx context.Context, s *Store, _ DB) (err error) {
			ending, err = s.Release(ctx, alice, refs(rows))
			return err
		},
		"misses": func(ctx context.Context, s *Store, _ DB) error {
			if n, err := s.Release(ctx, alice, refs(rows)); n != 0 || !errors.Is(err, ErrNotReleased) {
				return fmt.Errorf("the release of a row that is held: %d, %v", n, err)
			}
			return nil
		},
		"release-within": func(ctx context.Context, s *Store, db DB) error {
			var r releasedRows
			var held slots
			err := db.QueryRow(ctx, s.sql("release"), alice, []int64{id}, []int{rows[0].Claim}).Scan(held.after(&r.released, &r.ending, &r.kept)...)
			ending = r.ending
			return err
		},
	}
	for _, c := range []struct {
		script string
		result Cancellation
		ending int
		status Status
	}{
		{`host   begin
		  host   cancel
		  worker misses
		  host   commit
		  worker release`, Requested, 1, Runnable},
		{`worker begin
		  worker release-within
		  host   cancel blocks
		  worker commit
		  host   resumes`, Ended, 0, Failed},
	} {
		exec(t, s, `UPDATE gen_durable SET status = 'runnable', cancel_requested = NULL, locked_by = NULL, concurrency_shard = NULL, last_error = NULL`)
		if rows = claimWith(t, s, gated(1)); len(rows) != 1 {
			t.Fatalf("claimed %d rows", len(rows))
		}
		interleave(t, s, moves, c.script)
		if cancelled.Result != c.result || ending != c.ending {
			t.Errorf("%s\nthe cancel came to %v, the release tells of %d rows that are to be ended", c.script, cancelled.Result, ending)
		}
		wantStatus(t, s, c.status, id)
	}
}

// TestClaimFindsNewPriorities: a claim that begins where a survey ended finds rows of priorities that nobody had then, between,
// above and below the others, and takes the most urgent first; not those that are older than the survey.
func TestClaimFindsNewPriorities(t *testing.T) {
	t.Parallel()
	s := open(t)
	put(t, s, 3, func(i *Insertion) { i.Priority = 0 })
	put(t, s, 3, func(i *Insertion) { i.Priority = 3 })
	report := ClaimReport{Survey: true}
	claimWith(t, s, ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: 6, Report: &report})
	put(t, s, 3, func(i *Insertion) { i.Priority = 0 })
	for _, p := range []int16{-32768, -2, -1, 0, 1, 2, 3, 4, 7, 32767} {
		put(t, s, 2, func(i *Insertion) { i.Priority = p })
		put(t, s, 1, func(i *Insertion) { i.Priority, i.EligibleAt = p, time.Now().Add(-time.Hour) })
		put(t, s, 1, func(i *Insertion) { i.Priority, i.Delay = p, time.Hour })
	}
	claimed := func(limit int, since []Lane, others time.Time) (priorities []int16) {
		t.Helper()
		r := ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: limit, Since: since, Others: others}
		rows := claimWith(t, s, r)
		for _, row := range rows {
			if !slices.Contains(priorities, row.Priority) {
				priorities = append(priorities, row.Priority)
			}
			if row.EligibleAt.Before(report.At) {
				t.Errorf("from %v and %v on it found %+v", since, others, row)
			}
		}
		if _, err := s.Release(testContext(t), alice, refs(rows)); err != nil {
			t.Fatal(err)
		}
		return priorities
	}
	lanes := []Lane{{0, report.At}, {3, report.At}}
	for _, c := range []struct {
		limit  int
		since  []Lane
		others time.Time
		want   []int16
	}{
		{100, lanes, report.At, []int16{-32768, -2, -1, 0, 1, 2, 3, 4, 7, 32767}},
		{3, lanes, report.At, []int16{-32768, -2}},
		{100, lanes, time.Time{}, []int16{0, 3}},
		{100, []Lane{}, report.At, []int16{-32768, -2, -1, 0, 1, 2, 3, 4, 7, 32767}},
		{100, []Lane{{-32768, report.At}, {32767, report.At}}, report.At, []int16{-32768, -2, -1, 0, 1, 2, 3, 4, 7, 32767}},
	} {
		if got := claimed(c.limit, c.since, c.others); !slices.Equal(got, c.want) {
			t.Errorf("a claim of %d from %v and %v on took rows of the priorities %v, expected %v", c.limit, c.since, c.others, got, c.want)
		}
	}
}

// TestNewPrioritiesCostNoWalk: looking for them does not fetch the dead rows of priorities that nobody has any more, which an old
// snapshot keeps.
func TestNewPrioritiesCostNoWalk(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	put(t, s, 20, func(i *Insertion) { i.Priority = 5 })
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
	exec(t, s, `INSERT INTO gen_durable (fsm, step, priority, eligible_at) SELECT 'm', 'a', i % 4, now() - interval '1 h' FROM generate_series(1, 20000) i`)
	exec(t, s, `UPDATE gen_durable SET status = 'done' WHERE priority < 5`)
	since := []Lane{{5, time.Now().Add(-time.Minute)}}
	all := pagesOfClaim(t, s, ClaimRequest{Limit: 10})
	without := pagesOfClaim(t, s, ClaimRequest{Limit: 10, Since: since})
	with := pagesOfClaim(t, s, ClaimRequest{Limit: 10, Since: since, Others: time.Now().Add(-time.Minute)})
	t.Logf("%d pages everywhere, %d behind the survey, %d with what is new", all, without, with)
	if with-without > many/50 || all < 10*(with-without) {
		t.Errorf("behind %d dead rows of other priorities a claim touches %d pages everywhere, %d behind the survey, %d with new priorities",
			many, all, without, with)
	}
}
