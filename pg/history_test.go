package pg

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// recorded asks for a record of the outcome.
func recorded(o Outcome) Outcome {
	o.Record = &Record{Step: "a", Attempt: 3, Took: 1500 * time.Microsecond}
	return o
}

// history is the history of an instance, a line a transition.
func history(t testing.TB, s *Store, id int64) []string {
	t.Helper()
	list, err := s.History(testContext(t), s.pool, id, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, h := range list {
		out = append(out, fmt.Sprintf("%s/%d %s -> %q %s %q", h.Step, h.Attempt, h.Outcome, h.NextStep, h.Status, h.Error))
	}
	return out
}

func wantHistory(t testing.TB, s *Store, id int64, want ...string) {
	t.Helper()
	if got := history(t, s, id); !slices.Equal(got, want) {
		t.Errorf("the history of %d is %q, expected %q", id, got, want)
	}
}

// TestHistoryOfEachOutcome: one row a transition, in the transaction of the transition.
func TestHistoryOfEachOutcome(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("history")
	want := map[Kind]string{
		KindNext: `next -> "b" runnable ""`, KindRetry: `retry -> "a" runnable "again"`, KindAwait: `await -> "b" awaiting_signal ""`,
		KindChildren: `children -> "b" awaiting_children ""`, KindContinue: `next -> "b" executing ""`, KindDone: `done -> "" done ""`,
		KindFailed: `stop -> "" failed "no"`,
	}
	put(t, s, 2*len(want))
	var batch []Outcome
	for i, row := range claim(t, s, alice, 100) {
		o := outcome(row, alice, Kind(i%len(want)))
		if o.Kind == KindRetry {
			o.Error = "again"
		}
		if o.Kind == KindChildren {
			o.Children = []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: "elsewhere"}}
		}
		if i < len(want) {
			o = recorded(o)
		}
		batch = append(batch, o)
	}
	commitAll(t, c, batch...)
	for i, o := range batch {
		if i < len(want) {
			wantHistory(t, s, o.ID, "a/3 "+want[o.Kind])
		} else {
			wantHistory(t, s, o.ID)
		}
	}
	list, err := s.History(testContext(t), s.pool, batch[0].ID, 0, 1)
	if err != nil || len(list) != 1 || list[0].Worker != alice || list[0].Took != 1500*time.Microsecond || list[0].At.IsZero() {
		t.Errorf("the record is %+v, %v", list, err)
	}
	if list, err = s.History(testContext(t), s.pool, batch[0].ID, list[0].ID, 10); err != nil || len(list) != 0 {
		t.Errorf("after the last one: %+v, %v", list, err)
	}
}

// TestStaleOutcomesHaveNoHistory lets a worker that lost its row come back with each kind of outcome, beside one that
// holds; and with the row claimed by the worker itself again, under another number.
func TestStaleOutcomesHaveNoHistory(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("history")
	for _, owner := range []string{alice, bob} {
		exec(t, s, `TRUNCATE gen_durable CASCADE`)
		put(t, s, 1)
		row := claimOne(t, s, alice)
		reap(t, s)
		claimOne(t, s, owner)
		for _, o := range everyKind(row, alice, nil) {
			o.TraceContext = "stale"
			put(t, s, 1)
			good := recorded(outcome(claimOne(t, s, bob), bob, KindDone))
			f := flushAll(t, c, recorded(o), good)
			if f.Verdicts[0].Fate != Stale || f.Verdicts[1].Fate != Committed {
				t.Errorf("kind %d: verdicts %+v", o.Kind, f.Verdicts)
			}
			wantHistory(t, s, row.ID)
			wantHistory(t, s, good.ID, `a/3 done -> "" done ""`)
		}
		if value[bool](t, s, `SELECT trace_context IS NOT NULL FROM gen_durable WHERE id = $1`, row.ID) {
			t.Error("a stale outcome wrote its trace")
		}
	}
}

// TestHistoryOfCancels: of a running instance, by its flush; of a waiting one, by the cancel.
func TestHistoryOfCancels(t *testing.T) {
	t.Parallel()
	plain, host := openWithHost(t, Options{})
	s, err := Open(testContext(t), plain.pool, Options{Historic: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	c := s.NewCommitter("history")
	cancel := func(s *Store, db DB, id int64, want Cancellation) {
		t.Helper()
		if r, err := s.Cancel(testContext(t), db, id, "why"); err != nil || r.Result != want {
			t.Fatalf("the cancel came to %+v, %v", r, err)
		}
	}
	running := put(t, s, 2)
	for _, row := range claim(t, s, alice, 10) {
		cancel(s, host, row.ID, Requested)
		kind := KindNext
		if row.ID == running[1] {
			kind = KindDone
		}
		f := flushAll(t, c, recorded(outcome(row, alice, kind)))
		if f.Verdicts[0].Fate != Cancelled && f.Verdicts[0].Status != Failed {
			t.Errorf("verdict %+v", f.Verdicts[0])
		}
		wantHistory(t, s, row.ID, `a/3 cancelled -> "" failed "cancelled: why"`)
	}
	// A row that is put back without a step having run makes a transition only then.
	put(t, s, 2)
	for i, row := range claim(t, s, alice, 10) {
		var want []string
		if i == 0 {
			cancel(s, host, row.ID, Requested)
			want = []string{`a/3 cancelled -> "" failed "cancelled: why"`}
		}
		o := recorded(outcome(row, alice, KindRetry))
		o.Record.Unrun = true
		flushAll(t, c, o)
		wantHistory(t, s, row.ID, want...)
		if i > 0 {
			exec(t, s, `DELETE FROM gen_durable WHERE id = $1`, row.ID)
		}
	}
	waiting := put(t, s, 1)[0]
	cancel(s, host, waiting, Ended)
	cancel(s, host, waiting, AlreadyTerminal)
	wantHistory(t, s, waiting, `a/0 cancelled -> "" failed "cancelled: why"`)

	inside := put(t, s, 1)[0]
	if err := pgx.BeginFunc(testContext(t), host, func(tx pgx.Tx) error { cancel(s, tx, inside, Ended); return nil }); err != nil {
		t.Fatal(err)
	}
	wantHistory(t, s, inside, `a/0 cancelled -> "" failed "cancelled: why"`)

	unknown := put(t, s, 1)[0] // a process that does not know that the machine keeps one
	cancel(plain, host, unknown, Ended)
	wantHistory(t, s, unknown)
	known := put(t, s, 1)[0]
	commitAll(t, c, recorded(outcome(claimOne(t, s, alice), alice, KindAwait)))
	cancel(plain, host, known, Ended)
	wantHistory(t, s, known, `a/3 await -> "b" awaiting_signal ""`, `b/0 cancelled -> "" failed "cancelled: why"`)
}

// TestHistoryOfRetries: one record a retry that did something, also in a savepoint of the caller's, and none for the others.
func TestHistoryOfRetries(t *testing.T) {
	t.Parallel()
	plain, host := openWithHost(t, Options{})
	s, err := Open(testContext(t), plain.pool, Options{Historic: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	c := s.NewCommitter("history")
	const failed, again = `a/3 stop -> "" failed "no"`, `a/0 retried -> "a" runnable ""`
	fail := func(record bool) int64 {
		t.Helper()
		put(t, s, 1)
		o := outcome(claimOne(t, s, alice), alice, KindFailed)
		if record {
			o = recorded(o)
		}
		commitAll(t, c, o)
		return o.ID
	}
	id := fail(true)
	exec(t, s, `UPDATE gen_durable SET attempt = 4 WHERE id = $1`, id)
	retried(t, s, host, id, Retried)
	retried(t, s, host, id, RetryNotFailed)
	wantHistory(t, s, id, failed, again)
	commitAll(t, c, recorded(outcome(claimOne(t, s, bob), bob, KindDone)))
	retried(t, s, host, id, RetryNotFailed)
	wantHistory(t, s, id, failed, again, `a/3 done -> "" done ""`)

	known, unknown := fail(true), fail(false) // a process that does not know that the machine keeps one
	retried(t, plain, host, known, Retried)
	retried(t, plain, host, unknown, Retried)
	wantHistory(t, s, known, failed, again)
	wantHistory(t, s, unknown)
	for _, row := range claim(t, s, bob, 10) {
		commitAll(t, c, outcome(row, bob, KindDone))
	}

	id = fail(true)
	if err := pgx.BeginFunc(testContext(t), host, func(tx pgx.Tx) error {
		if err := pgx.BeginFunc(testContext(t), tx, func(tx pgx.Tx) error { retried(t, s, tx, id, Retried); return nil }); err != nil {
			return err
		}
		return errRolledBack
	}); err != errRolledBack {
		t.Fatal(err)
	}
	wantHistory(t, s, id, failed)
	if err := pgx.BeginFunc(testContext(t), host, func(tx pgx.Tx) error {
		return pgx.BeginFunc(testContext(t), tx, func(tx pgx.Tx) error { retried(t, s, tx, id, Retried); return nil })
	}); err != nil {
		t.Fatal(err)
	}
	wantHistory(t, s, id, failed, again)

	first := insert(t, s, host, keyed("k"))[0].ID
	cancelled(t, s, host, first, Ended)
	insert(t, s, host, keyed("k"))
	retried(t, s, host, first, RetryOccupied)
	wantHistory(t, s, first, `start/0 cancelled -> "" failed "cancelled: changed my mind"`)
}

var errRolledBack = errors.New("rolled back on purpose")

// TestHistoryGoesWithItsInstance: deleted with it by the collection, and found by the sweep when somebody else deleted it.
func TestHistoryGoesWithItsInstance(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	c := s.NewCommitter("history")
	put(t, s, 4)
	var ids []int64
	for i, row := range claim(t, s, alice, 10) {
		ids = append(ids, row.ID)
		kind := KindDone
		if i > 1 {
			kind = KindAwait
		}
		commitAll(t, c, recorded(outcome(row, alice, kind)))
	}
	records := func() int64 { return value[int64](t, s, `SELECT count(*) FROM gen_durable_history`) }
	if n, _, err := s.CollectTerminal(ctx, 0, 0, Position{}, 10); err != nil || n != 2 || records() != 2 {
		t.Fatalf("%d deleted (%v), %d records left", n, err, records())
	}
	exec(t, s, `DELETE FROM gen_durable WHERE id = $1`, ids[2])
	total := 0
	for range 3 { // a page of one: two with something in them, and the end
		n, err := s.CollectSideTables(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	if total != 1 || records() != 1 || len(history(t, s, ids[3])) != 1 {
		t.Errorf("%d orphans deleted, %d records left", total, records())
	}
	if s.looked.Load() != 0 {
		t.Error("the sweep did not come to the end of the table")
	}
}

// TestTracesAndHistoriesAreFreeWhenOff: no statement is sent for what no outcome asks for, and the column stays null.
func TestTracesAndHistoriesAreFreeWhenOff(t *testing.T) {
	t.Parallel()
	s := open(t)
	sent := func(change func(*Outcome)) string {
		row := Claimed{ID: 1, Claim: 1}
		var b pgx.Batch
		var batch []*entry
		for _, o := range everyKind(row, alice, nil) {
			o.ID += int64(o.Kind)
			change(&o)
			batch = append(batch, &entry{Outcome: &o})
		}
		f := newFlush(s, batch)
		f.queueTraces(&b)
		f.queueHistory(&b)
		var names []string
		for _, q := range b.QueuedQueries {
			name, _, _ := strings.Cut(strings.TrimPrefix(q.SQL, "/* gendurable:"), " ")
			names = append(names, name)
		}
		return strings.Join(names, " ")
	}
	if got := sent(func(*Outcome) {}); got != "" {
		t.Errorf("sent %q for outcomes that ask for nothing", got)
	}
	if got := sent(func(o *Outcome) { o.TraceContext = "t"; *o = recorded(*o) }); got != "flush_trace flush_history" {
		t.Errorf("sent %q", got)
	}
	if got := sent(func(o *Outcome) {
		if o.Kind == KindContinue {
			o.TraceContext = "t"
		}
	}); got != "" {
		t.Errorf("sent %q for a continuation", got)
	}
}
