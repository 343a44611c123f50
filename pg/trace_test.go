package pg

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

// TestTraceContexts follows where a trace goes on: from each form of insert to the claim, from outcome to claim, to children
// and from them to their parent, and from signals.
func TestTraceContexts(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("traces")
	ctx := testContext(t)
	traced := func(n int, change func(*Insertion)) []Insertion {
		rows := make([]Insertion, n)
		for i := range rows {
			rows[i] = Insertion{Machine: "m", Version: 1, Step: "a", Queue: "default", TraceContext: fmt.Sprint("t", i)}
			change(&rows[i])
		}
		return rows
	}
	for name, rows := range map[string][]Insertion{
		"one": traced(1, func(*Insertion) {}), "many": traced(3, func(*Insertion) {}),
		"keyed": traced(3, func(i *Insertion) { i.CorrelationKey = i.TraceContext; i.RequestID = i.TraceContext }),
		"half": traced(3, func(i *Insertion) {
			if i.TraceContext == "t0" {
				i.TraceContext = ""
			}
		}),
	} {
		exec(t, s, `TRUNCATE gen_durable, gen_durable_requests CASCADE`)
		inserted := insert(t, s, s.pool, rows...)
		got := map[int64]string{}
		for _, row := range claim(t, s, alice, 10) {
			got[row.ID] = row.TraceContext
			if row.Waited < 0 || row.Waited > time.Hour {
				t.Errorf("%s: it waited %v", name, row.Waited)
			}
		}
		for i, in := range inserted {
			if got[in.ID] != rows[i].TraceContext {
				t.Errorf("%s: row %d claims with %q, expected %q", name, i, got[in.ID], rows[i].TraceContext)
			}
		}
	}

	exec(t, s, `TRUNCATE gen_durable CASCADE`)
	put(t, s, 1)
	parent := claimOne(t, s, alice)
	if parent.TraceContext != "" {
		t.Errorf("it claims with %q", parent.TraceContext)
	}
	o := outcome(parent, alice, KindChildren)
	o.TraceContext = "fan-out"
	for _, trace := range []string{"x", "", "y"} {
		o.Children = append(o.Children, Insertion{Machine: "c", Version: 1, Step: "a", Queue: "default", TraceContext: trace})
	}
	commitAll(t, c, o)
	var ends []Outcome
	want := []string{"x", "", "y"}
	for i, row := range claim(t, s, alice, 10) {
		if row.TraceContext != want[i] {
			t.Errorf("child %d claims with %q, expected %q", i, row.TraceContext, want[i])
		}
		end := outcome(row, alice, KindDone)
		if end.TraceContext = "end"; i == 1 {
			end.TraceContext = ""
		}
		ends = append(ends, end)
	}
	commitAll(t, c, ends...)
	if _, err := s.Signal(ctx, s.pool, []Delivery{{ID: parent.ID, Name: "n", TraceContext: "one"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Signal(ctx, s.pool, []Delivery{{ID: parent.ID, Name: "n"}, {ID: parent.ID, Name: "n", TraceContext: "two"}}); err != nil {
		t.Fatal(err)
	}
	row := claimOne(t, s, alice)
	got := row.TraceContext
	for _, child := range row.Children {
		got += " " + child.TraceContext
	}
	for _, sig := range row.Inbox {
		got += " " + sig.TraceContext
	}
	if got != "fan-out end  end one  two" {
		t.Errorf("the parent sees %q", got)
	}
	// What does not carry one leaves it, and a continuation does not write.
	next := outcome(row, alice, KindContinue)
	next.TraceContext = "continued"
	commitAll(t, c, next)
	commitAll(t, c, outcome(row, alice, KindRetry))
	if again := claimOne(t, s, alice); again.TraceContext != "fan-out" {
		t.Errorf("it claims with %q", again.TraceContext)
	}
}

// TestContendedClaimsAreCounted: who loses the race for a key tries again, and says so.
func TestContendedClaimsAreCounted(t *testing.T) {
	t.Parallel()
	s := open(t)
	// A trigger stands in for the other worker: it makes the first two tries fail as the unique index would.
	put(t, s, 1, func(i *Insertion) { i.ConcurrencyKey = "k" })
	exec(t, s, `CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF currval('race') < 3 THEN RAISE unique_violation; END IF; RETURN NEW; END $$;
		CREATE SEQUENCE race;
		CREATE FUNCTION turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('race'); RETURN NEW; END $$;
		CREATE TRIGGER a_turn BEFORE UPDATE ON gen_durable FOR EACH ROW EXECUTE FUNCTION turn();
		CREATE TRIGGER b_lose BEFORE UPDATE ON gen_durable FOR EACH ROW EXECUTE FUNCTION lose()`)
	var contended atomic.Int64
	report := ClaimReport{Survey: true}
	rows, err := s.Claim(testContext(t), ClaimRequest{
		Queue: "default", Worker: alice, Lease: time.Minute, Limit: 10, Contended: &contended, Report: &report,
	})
	if err != nil || len(rows) != 1 || contended.Load() != 2 {
		t.Errorf("claimed %d rows (%v) after %d lost races, expected one after two", len(rows), err, contended.Load())
	}
	if !report.At.IsZero() { // it has asked for fewer than whoever reads this believes
		t.Errorf("it says how far it has looked: %+v", report)
	}
}

// TestTracesAreHOT: the rider's second version of a row makes no index entry; without a trace there is none.
func TestTracesAreHOT(t *testing.T) {
	t.Parallel()
	s := onConn(t, open(t), "hot")
	c := s.NewCommitter("hot")
	updates := func() (n [2]int) {
		exec(t, s, `SELECT pg_stat_force_next_flush()`)
		return [2]int(value[[]int](t, s, `SELECT ARRAY[n_tup_upd, n_tup_hot_upd]::int[] FROM pg_stat_user_tables WHERE relname = 'gen_durable'`))
	}
	for _, trace := range []string{"", "trace"} {
		ids := put(t, s, 10)
		var batch []Outcome
		for _, row := range claim(t, s, alice, len(ids)) {
			o := outcome(row, alice, KindDone)
			o.TraceContext = trace
			batch = append(batch, o)
		}
		before := updates()
		commitAll(t, c, batch...)
		after := updates()
		all, hot := after[0]-before[0], after[1]-before[1]
		if want := len(ids); trace == "" && (all != want || hot != 0) || trace != "" && (all != 2*want || hot != want) {
			t.Errorf("with the trace %q: %d updates, %d of them HOT", trace, all, hot)
		}
	}
}
