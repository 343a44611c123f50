package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// liveScope is the default of users' inserts: the key is occupied as long as the instance is not terminal.
var liveScope = []string{"runnable", "executing", "awaiting_signal", "awaiting_children"}

func plain(machine string) Insertion {
	return Insertion{Machine: machine, Version: 1, Step: "start", State: []byte(`{}`), Queue: "q"}
}

func keyed(key string) Insertion {
	r := plain("m")
	r.CorrelationKey, r.CorrelationScope = key, liveScope
	return r
}

func requested(id string) Insertion {
	r := plain("m")
	r.RequestID = id
	return r
}

// insert inserts the rows and fails the test on an error.
func insert(t testing.TB, s *Store, db DB, rows ...Insertion) []Inserted {
	t.Helper()
	out, err := s.Insert(testContext(t), db, rows)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestInsertWritesEveryField(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	at := time.Date(2031, 5, 6, 7, 8, 9, 123000, time.UTC)
	full := Insertion{
		Machine: "order", Version: 7, Step: "pay", State: []byte(`{"a": [1, "ü"]}`), Queue: "slow", Priority: -3,
		CorrelationKey: "k", CorrelationScope: append(slices.Clone(liveScope), "done"), ConcurrencyKey: "gate:eu",
		RateLimit: "mails", Weight: 2.5, EligibleAt: at,
	}
	unkeyed := full
	unkeyed.CorrelationKey, unkeyed.CorrelationScope = "", nil
	full2 := full
	full2.CorrelationKey = "k2"
	for name, rows := range map[string][]Insertion{
		"one": {unkeyed}, "many": {plain("x"), unkeyed}, "keyed": {full}, "keyed, of many": {plain("x"), full2},
	} {
		t.Run(name, func(t *testing.T) {
			out := insert(t, s, host, rows...)
			in := rows[len(rows)-1]
			got, err := s.Get(ctx, host, out[len(out)-1].ID)
			if err != nil {
				t.Fatal(err)
			}
			if got.InsertedAt.IsZero() || got.UpdatedAt.IsZero() || !got.EligibleAt.Equal(at) {
				t.Errorf("times: %+v", got)
			}
			want := Instance{
				ID: out[len(out)-1].ID, Machine: "order", Version: 7, Step: "pay", Status: Runnable, State: in.State,
				Queue: "slow", Priority: -3, ConcurrencyKey: "gate:eu", RateLimit: "mails", Weight: 2.5,
				CorrelationKey: in.CorrelationKey, CorrelationScope: in.CorrelationScope,
			}
			if want.CorrelationScope == nil {
				want.CorrelationScope = []string{}
			}
			got.EligibleAt, got.InsertedAt, got.UpdatedAt = time.Time{}, time.Time{}, time.Time{}
			if fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", want) {
				t.Errorf("got  %+v\nwant %+v", *got, want)
			}
		})
	}
	if value[bool](t, s, `SELECT bool_or(has_inbox OR has_children) FROM gen_durable`) {
		t.Error("a new row claims to have signals or children")
	}
	got, err := s.GetByKey(ctx, host, "k")
	if err != nil || got == nil || got.CorrelationKey != "k" {
		t.Errorf("by key: %v, %v", got, err)
	}
	for _, missing := range []func() (*Instance, error){
		func() (*Instance, error) { return s.Get(ctx, host, 999999) },
		func() (*Instance, error) { return s.GetByKey(ctx, host, "nobody") },
		func() (*Instance, error) { return s.Get(ctx, host, 0) },
	} {
		if got, err := missing(); got != nil || err != nil {
			t.Errorf("a missing instance: %v, %v; expected nil without an error", got, err)
		}
	}
}

func TestInsertDefaults(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	least := Insertion{Machine: "m", Version: 1, Step: "a", Queue: "q", Priority: 5}
	key := least
	key.CorrelationKey, key.CorrelationScope = "k", liveScope
	delayed := least
	delayed.Delay = time.Nanosecond
	other := least
	other.Step = "b"
	for name, rows := range map[string][]Insertion{"one": {least}, "alike": {least, least}, "bare": {other, least}, "many": {least, delayed}, "keyed": {key}} {
		got := get(t, s, insert(t, s, host, rows...)[len(rows)-1].ID)
		if string(got.State) != "{}" || got.Weight != 1 || got.Priority != 5 || got.ConcurrencyKey != "" || got.RateLimit != "" ||
			!got.EligibleAt.Equal(got.InsertedAt) || got.Attempt != 0 || got.ParentID != 0 {
			t.Errorf("%s: %+v", name, *got)
		}
	}
	if value[bool](t, s, `SELECT bool_or(concurrency_key IS NOT NULL OR rate_limit IS NOT NULL) FROM gen_durable`) {
		t.Error("an absent key or limit was stored as an empty one")
	}
}

func TestInsertedRowsAreMarkedForOtherEngines(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{Interoperable: true})
	insert(t, s, host, plain("a"))
	insert(t, s, host, plain("a"), plain("b"))
	insert(t, s, host, keyed("k"))
	if !value[bool](t, s, `SELECT bool_and(has_inbox AND has_children) FROM gen_durable`) {
		t.Error("the other engine could deliver a signal, or spawn a child, that our claim would not look for")
	}
}

func TestInsertTimesAreTheDatabases(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	late := plain("m")
	late.Delay = 60 * 24 * time.Hour // in milliseconds it would overflow an int4
	longest := plain("m")
	longest.Delay = 1<<63 - 1
	ids := insert(t, s, host, plain("m"), late, longest)
	one := insert(t, s, host, late)
	for i, c := range []struct {
		id   int64
		want string
	}{{ids[0].ID, "0"}, {ids[1].ID, "60 days"}, {one[0].ID, "60 days"}, {ids[2].ID, "9223372036854775 microseconds"}} {
		if !value[bool](t, s, `SELECT abs(extract(epoch FROM eligible_at - inserted_at) - extract(epoch FROM $2::text::interval)) < 0.00001
			FROM gen_durable WHERE id = $1`, c.id, c.want) {
			t.Errorf("row %d: eligible %v", i, value[time.Time](t, s, `SELECT eligible_at FROM gen_durable WHERE id = $1`, c.id))
		}
	}
}

func TestInsertAnswersInOrder(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	var rows []Insertion
	for i := range 1000 {
		r := plain(fmt.Sprint("m", i))
		if i%3 == 0 {
			r = keyed(fmt.Sprint("key", 1000-i))
			r.Machine = fmt.Sprint("m", i)
		}
		rows = append(rows, r)
	}
	out := insert(t, s, host, rows...)
	for i, o := range out {
		if o.Duplicate || o.Repeated {
			t.Fatalf("entry %d: %+v", i, o)
		}
		if got := value[string](t, s, `SELECT fsm FROM gen_durable WHERE id = $1`, o.ID); got != rows[i].Machine {
			t.Fatalf("entry %d got the row of %s", i, got)
		}
		if i > 0 && out[i-1].ID >= o.ID {
			t.Fatalf("ids are not in the order of the entries at %d", i)
		}
	}
}

func TestInsertManyThousands(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	const n = 60_000 // with a parameter a column a row it would be far beyond 65,535
	rows := make([]Insertion, n)
	for i := range rows {
		rows[i] = plain("m")
	}
	if out := insert(t, s, host, rows...); len(out) != n {
		t.Fatalf("%d answers", len(out))
	}
	for i := range rows {
		rows[i] = keyed(fmt.Sprint("k", i))
		rows[i].RequestID = fmt.Sprint("r", i)
	}
	first := insert(t, s, host, rows...)
	again := insert(t, s, host, rows...)
	for i := range first {
		if first[i].Duplicate || first[i].Repeated || again[i].ID != first[i].ID || !again[i].Repeated {
			t.Fatalf("entry %d: %+v, again %+v", i, first[i], again[i])
		}
	}
	if got := value[int](t, s, `SELECT count(*)::int FROM gen_durable`); got != 2*n {
		t.Errorf("%d rows", got)
	}
}

func TestInsertOccupiedKeys(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	first := insert(t, s, host, keyed("a"))[0]
	out := insert(t, s, host, keyed("b"), keyed("a"), keyed("b"), plain("m"))
	if out[0].Duplicate || out[3].Duplicate {
		t.Errorf("fresh entries: %+v", out)
	}
	if !out[1].Duplicate || out[1].ID != first.ID {
		t.Errorf("a key of an earlier batch: %+v, expected the occupant %d", out[1], first.ID)
	}
	if !out[2].Duplicate || out[2].ID != out[0].ID {
		t.Errorf("a key twice in a batch: %+v, expected the occupant %d", out[2], out[0].ID)
	}
	exec(t, s, `UPDATE gen_durable SET status = 'done' WHERE id = $1`, first.ID)
	if again := insert(t, s, host, keyed("a"))[0]; again.Duplicate {
		t.Errorf("the key of an instance that ended: %+v", again)
	}
	forever := keyed("c")
	forever.CorrelationScope = append(slices.Clone(liveScope), "done", "failed")
	kept := insert(t, s, host, forever)[0]
	exec(t, s, `UPDATE gen_durable SET status = 'failed' WHERE id = $1`, kept.ID)
	if again := insert(t, s, host, forever)[0]; !again.Duplicate || again.ID != kept.ID {
		t.Errorf("a scope with failed: %+v", again)
	}
	free := keyed("d")
	free.CorrelationScope = nil
	if out := insert(t, s, host, free, free); out[0].Duplicate || out[1].Duplicate {
		t.Errorf("an empty scope means no uniqueness: %+v", out)
	}
}

func TestInsertScopes(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	for _, scope := range [][]string{nil, {}, liveScope, append([]string{"done"}, liveScope...),
		append([]string{"failed"}, liveScope...), append([]string{"failed", "done", "done"}, liveScope...)} {
		r := keyed("k" + strings.Join(scope, ","))
		r.CorrelationScope = scope
		id := insert(t, s, host, r)[0].ID
		i, err := s.Get(testContext(t), host, id)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Compact(slices.Sorted(slices.Values(scope)))
		if got := slices.Sorted(slices.Values(i.CorrelationScope)); !slices.Equal(got, want) {
			t.Errorf("scope %v was stored as %v", scope, got)
		}
	}
	for _, scope := range [][]string{{"runnable"}, {"done", "failed"}, append([]string{"lost"}, liveScope...)} {
		r := keyed("k")
		r.CorrelationScope = scope
		if _, err := s.Insert(testContext(t), host, []Insertion{r}); err == nil {
			t.Errorf("the scope %v was accepted", scope)
		}
	}
}

func TestInsertRepeatedRequests(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	first := insert(t, s, host, requested("r1"))[0]
	out := insert(t, s, host, requested("r1"), requested("r2"), requested("r2"), plain("m"))
	if !out[0].Repeated || out[0].ID != first.ID {
		t.Errorf("a repeat: %+v, expected the first id %d", out[0], first.ID)
	}
	if out[1].Repeated || !out[2].Repeated || out[2].ID != out[1].ID {
		t.Errorf("twice in a batch: %+v", out)
	}
	exec(t, s, `DELETE FROM gen_durable WHERE id = $1`, first.ID)
	if out := insert(t, s, host, requested("r1"))[0]; !out.Repeated || out.ID != first.ID {
		t.Errorf("a repeat after the instance is gone: %+v", out)
	}

	// A request that is refused for its key is not remembered: the repeat is judged anew.
	occupant := insert(t, s, host, keyed("k"))[0]
	both := keyed("k")
	both.RequestID = "r3"
	for range 2 {
		if out := insert(t, s, host, both)[0]; !out.Duplicate || out.Repeated || out.ID != occupant.ID {
			t.Errorf("a request for an occupied key: %+v", out)
		}
	}
	exec(t, s, `UPDATE gen_durable SET status = 'done' WHERE id = $1`, occupant.ID)
	done := insert(t, s, host, both)[0]
	if done.Duplicate || done.Repeated {
		t.Errorf("the request after the key is free: %+v", done)
	}
	if out := insert(t, s, host, both)[0]; !out.Repeated || out.ID != done.ID {
		t.Errorf("a repeat whose own instance occupies the key: %+v", out)
	}
}

func TestInsertConcurrentRequests(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	var wg sync.WaitGroup
	answers := make([][]Inserted, 8)
	for i := range answers {
		wg.Go(func() {
			rows := []Insertion{requested("a"), keyed("k"), requested("b")}
			rows[1].RequestID = "c"
			if i%2 == 1 {
				slices.Reverse(rows)
			}
			out, err := s.Insert(testContext(t), host, rows)
			if err != nil {
				t.Error(err)
				return
			}
			if i%2 == 1 {
				slices.Reverse(out)
			}
			answers[i] = out
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	fresh := 0
	for _, out := range answers {
		for e, o := range out {
			if o.ID != answers[0][e].ID {
				t.Errorf("entry %d: instance %d here and %d there", e, o.ID, answers[0][e].ID)
			}
			if o.Duplicate {
				t.Errorf("entry %d: a repeated request was taken for a duplicate key", e)
			}
			if !o.Repeated {
				fresh++
			}
		}
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable`); n != 3 || fresh != 3 {
		t.Errorf("%d instances, %d entries answered as fresh; expected 3", n, fresh)
	}
}

func TestInsertRaces(t *testing.T) {
	t.Parallel()
	ins := func(rows func() []Insertion, check func([]Inserted) error) move {
		return func(ctx context.Context, s *Store, db DB) error {
			out, err := s.Insert(ctx, db, rows())
			if err == nil && check != nil {
				err = check(out)
			}
			return err
		}
	}
	s, _ := openWithHost(t, Options{})
	var firstID int64
	remember := func(out []Inserted) error { firstID = out[0].ID; return nil }
	isDuplicate := func(out []Inserted) error {
		if !out[0].Duplicate || out[0].ID != firstID {
			return fmt.Errorf("%+v, expected a duplicate of %d", out[0], firstID)
		}
		return nil
	}
	isRepeat := func(out []Inserted) error {
		if !out[0].Repeated || out[0].ID != firstID {
			return fmt.Errorf("%+v, expected a repeat of %d", out[0], firstID)
		}
		return nil
	}
	isFresh := func(out []Inserted) error {
		if out[0].Duplicate || out[0].Repeated {
			return fmt.Errorf("%+v, expected a fresh one", out[0])
		}
		return nil
	}
	key := func(k string) func() []Insertion { return func() []Insertion { return []Insertion{keyed(k)} } }
	req := func(r string) func() []Insertion { return func() []Insertion { return []Insertion{requested(r)} } }
	moves := map[string]move{
		"key-first":   ins(key("a"), remember),
		"key-taken":   ins(key("a"), isDuplicate),
		"key-free":    ins(key("b"), isFresh),
		"req-first":   ins(req("r"), remember),
		"req-repeat":  ins(req("r"), isRepeat),
		"req2-first":  ins(req("s"), isFresh),
		"other-plain": ins(func() []Insertion { return []Insertion{plain("m")} }, isFresh),
	}
	// The waiter's snapshot is older than what it waited for, and yet it names the occupant or the first instance.
	interleave(t, s, moves, `
		host   begin
		host   key-first
		other  key-taken    blocks
		third  other-plain
		host   commit
		other  resumes

		host   begin
		host   key-free
		other  key-free     blocks
		host   rollback
		other  resumes

		host   begin
		host   req-first
		other  req-repeat   blocks
		host   commit
		other  resumes

		host   begin
		host   req2-first
		other  req2-first   blocks
		host   rollback
		other  resumes
	`)
}

func TestInsertInOppositeOrders(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	var wg sync.WaitGroup
	const rounds, keys = 60, 40
	for w := range 4 {
		wg.Go(func() {
			for round := range rounds {
				rows := make([]Insertion, keys)
				for i := range rows {
					rows[i] = keyed(fmt.Sprintf("k%d-%d", round, i))
					rows[i].RequestID = fmt.Sprintf("%d-r%d-%d", w%2, round, i)
				}
				if w%2 == 1 {
					slices.Reverse(rows)
				}
				if _, err := s.Insert(testContext(t), host, rows); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable`); n != rounds*keys {
		t.Errorf("%d instances, expected %d", n, rounds*keys)
	}
}

func TestInsertInTheCallersTransaction(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	failed := errors.New("changed my mind")
	err := pgx.BeginFunc(ctx, host, func(tx pgx.Tx) error {
		// The caller's search_path is nothing we may rely on.
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = pg_catalog`); err != nil {
			return err
		}
		both := keyed("k")
		both.RequestID = "r"
		if _, err := s.Insert(ctx, tx, []Insertion{both, plain("m")}); err != nil {
			return err
		}
		if out, err := s.Insert(ctx, tx, []Insertion{both}); err != nil || !out[0].Repeated {
			return fmt.Errorf("a repeat in the same transaction: %+v, %w", out, err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable`); n != 0 {
		t.Errorf("%d rows outlived the rollback", n)
	}
}

func TestInsertRefusedByPostgres(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	bad := map[string]Insertion{"NUL in a name": plain("a\x00b"), "invalid UTF-8": plain("a\xffb")}
	for name, state := range map[string]string{
		"NUL in JSON": `{"a": "\u0000"}`, "lone surrogate": `{"a": "\ud800"}`, "number out of range": `{"a": 1e999999}`,
		"not JSON": `{`,
	} {
		r := plain("m")
		r.State = []byte(state)
		bad[name] = r
	}
	// Random enough that the index cannot compress it below a page's third.
	var long strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&long, "%x", uint64(i+1)*0x9e3779b97f4a7c15)
	}
	bad["a key too long for an index"] = keyed(long.String())
	for name, r := range bad {
		_, err := s.Insert(testContext(t), host, []Insertion{plain("m"), r, keyed("x")})
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) {
			t.Errorf("%s: %v, expected Postgres's refusal", name, err)
		}
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable`); n != 0 {
		t.Errorf("%d rows of refused batches were stored", n)
	}
}
