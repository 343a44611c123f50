package pg

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// held has another transaction hold rows until the returned function is called.
func held(t *testing.T, s *Store, ids ...int64) (release func()) {
	t.Helper()
	tx, err := s.pool.Begin(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(testContext(t), `SELECT 1 FROM gen_durable WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`, ids); err != nil {
		t.Fatal(err)
	}
	release = func() { _ = tx.Rollback(context.Background()) }
	t.Cleanup(release)
	return release
}

// TestHeartbeat sees each of its answers, in the order of the ids.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	put(t, s, 5)
	rows := claim(t, s, alice, 5)
	ids := claimedIDs(rows)
	expire(t, s)
	// 0: ours and expired; 1: somebody holds it; 2: taken by another; 3: ended; 4: cancel requested.
	exec(t, s, `UPDATE gen_durable SET locked_by = $2 WHERE id = $1`, ids[2], bob)
	commitAll(t, s.NewCommitter("beat"), outcome(rows[3], alice, KindDone))
	exec(t, s, `UPDATE gen_durable SET cancel_requested = 'why' WHERE id = $1`, ids[4])
	release := held(t, s, ids[1])
	ask := []int64{ids[4], ids[3], ids[2], ids[1], ids[0], 1 << 40}
	beats, err := s.Heartbeat(ctx, alice, time.Hour, ask)
	if err != nil {
		t.Fatal(err)
	}
	want := []BeatState{Extended, Lost, Lost, Locked, Extended, Lost}
	for i, b := range beats {
		if b.ID != ask[i] || b.State != want[i] || (b.CancelReason != nil) != (i == 0) {
			t.Errorf("beat %d is %+v, expected state %d of row %d", i, b, want[i], ask[i])
		}
	}
	if left := value[bool](t, s, `SELECT lease_expires_at > now() + interval '59 min' FROM gen_durable WHERE id = $1`, ids[0]); !left {
		t.Error("the expired lease was not extended")
	}
	if b, err := s.ExtendOne(ctx, alice, time.Hour, ids[1]); err != nil || b.State != Locked {
		t.Errorf("extending a row that stays held: %+v, %v", b, err)
	}
	release()
	if b, err := s.ExtendOne(ctx, alice, time.Hour, ids[1]); err != nil || b.State != Extended {
		t.Errorf("extending it alone: %+v, %v", b, err)
	}
	if b, err := s.ExtendOne(ctx, alice, time.Hour, ids[2]); err != nil || b.State != Lost {
		t.Errorf("extending another's row: %+v, %v", b, err)
	}
	if r, err := s.ReapLeases(ctx, time.Time{}, 10); err != nil || r.Rows != 1 {
		t.Errorf("reaped %+v, %v; expected the row of the other", r, err)
	}
}

// TestRelease: released rows are as before, those of others are left alone, those held are reported.
func TestRelease(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	put(t, s, 3)
	exec(t, s, `UPDATE gen_durable SET attempt = 2, crashes = 1, crash_step = 'a'`)
	before := value[string](t, s, `SELECT string_agg((to_jsonb(g) - 'updated_at' - 'claims')::text, ' ' ORDER BY id) FROM gen_durable g`)
	rows := claim(t, s, alice, 3)
	ids := claimedIDs(rows)
	exec(t, s, `UPDATE gen_durable SET concurrency_shard = 1`)
	if _, err := s.Release(ctx, bob, refs(rows)); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, s, Executing, ids...)
	letGo := held(t, s, ids[1])
	if _, err := s.Release(ctx, alice, refs(rows)); !errors.Is(err, ErrNotReleased) {
		t.Errorf("releasing a row that is held: %v", err)
	}
	wantStatus(t, s, Runnable, ids[0], ids[2])
	letGo()
	if _, err := s.Release(ctx, alice, refs(rows)); err != nil {
		t.Fatal(err)
	}
	after := value[string](t, s, `SELECT string_agg((to_jsonb(g) - 'updated_at' - 'claims')::text, ' ' ORDER BY id) FROM gen_durable g`)
	if after != before {
		t.Errorf("the rows are\n%s\nbefore:\n%s", after, before)
	}
}

// TestALateReleaseLeavesTheNextClaimAlone: a row was given back by another statement and claimed anew by the same worker before the
// release of its first claim came to be executed.
func TestALateReleaseLeavesTheNextClaimAlone(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	put(t, s, 1)
	first := claim(t, s, alice, 1)
	if n, err := s.ReleaseUnheld(ctx, alice, nil); err != nil || n != 1 {
		t.Fatalf("%d rows were found unheld, %v", n, err)
	}
	second := claim(t, s, alice, 1)
	if _, err := s.Release(ctx, alice, refs(first)); err != nil {
		t.Error(err)
	}
	wantStatus(t, s, Executing, first[0].ID)
	if _, err := s.Release(ctx, alice, refs(second)); err != nil {
		t.Error(err)
	}
	wantStatus(t, s, Runnable, first[0].ID)
}

// TestReaper counts attempts, and crashes of one step in a row; clears shards (trap 13); passes by locked rows.
func TestReaper(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("reaper")
	id := put(t, s, 1)[0]
	for n := 1; n <= 3; n++ {
		row := claimOne(t, s, alice)
		if row.Crashes != n-1 || row.Attempt != n-1 {
			t.Errorf("after %d crashes the claim shows %+v", n-1, row)
		}
		exec(t, s, `UPDATE gen_durable SET concurrency_shard = 1`)
		if r := reap(t, s); r.Rows != 1 || !slices.Equal(r.Queues, []string{"default"}) {
			t.Errorf("reaped %+v", r)
		}
		if value[bool](t, s, `SELECT concurrency_shard IS NOT NULL FROM gen_durable`) {
			t.Error("the shard was not cleared")
		}
	}
	exec(t, s, `UPDATE gen_durable SET step = 'other'`)
	if row := claimOne(t, s, alice); row.Crashes != 0 {
		t.Errorf("crashes of another step count: %+v", row)
	}
	reap(t, s)
	row := claimOne(t, s, alice)
	if row.Crashes != 1 || row.Attempt != 4 {
		t.Errorf("the claim shows %+v", row)
	}
	commitAll(t, c, outcome(row, alice, KindRetry))
	if in := get(t, s, id); in.Crashes != 0 || in.Attempt != 5 {
		t.Errorf("after a committed outcome the row is %+v", in)
	}
	claimOne(t, s, alice)
	letGo := held(t, s, id)
	expireHeld := func() (int, error) {
		r, err := s.ReapLeases(testContext(t), time.Time{}, 10)
		return r.Rows, err
	}
	if n, err := expireHeld(); n != 0 || err != nil {
		t.Errorf("reaped %d live rows, %v", n, err)
	}
	letGo()
	if r := reap(t, s); r.Rows != 1 {
		t.Errorf("reaped %+v", r)
	}
}

// TestCrashesBesideTheOriginal: progress that the original engine has committed sets attempt back and leaves our count of
// crashes alone; what was counted before it does not count any more.
func TestCrashesBesideTheOriginal(t *testing.T) {
	t.Parallel()
	s := open(t)
	id := put(t, s, 1)[0]
	for range 3 {
		claimOne(t, s, alice)
		reap(t, s)
	}
	exec(t, s, `UPDATE gen_durable SET attempt = 0`)
	if row := claimOne(t, s, alice); row.Crashes != 0 {
		t.Errorf("the claim shows %+v", row)
	}
	reap(t, s)
	if in := get(t, s, id); in.Crashes != 1 || in.Attempt != 1 {
		t.Errorf("after one more crash the row is %+v", in)
	}
}

// TestDeadlines: a timeout is a wake; limits and queues are told.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	put(t, s, 3)
	rows := claim(t, s, alice, 3)
	var parks []Outcome
	for i, row := range rows {
		o := outcome(row, alice, KindAwait)
		o.Timeout = time.Duration(i+1) * time.Hour
		parks = append(parks, o)
	}
	commitAll(t, s.NewCommitter("deadlines"), parks...)
	if r, err := s.WakeDeadlines(ctx, time.Time{}, 10); err != nil || r.Rows != 0 {
		t.Errorf("woken too early: %+v, %v", r, err)
	}
	exec(t, s, `UPDATE gen_durable SET await_deadline = await_deadline - interval '150 min'`)
	for _, want := range []int{1, 1, 0} {
		if r, err := s.WakeDeadlines(ctx, time.Time{}, 1); err != nil || r.Rows != want {
			t.Errorf("woken %+v, %v; expected %d", r, err, want)
		}
	}
	wantStatus(t, s, Runnable, rows[0].ID, rows[1].ID)
	wantStatus(t, s, AwaitingSignal, rows[2].ID)
	if in := get(t, s, rows[0].ID); in.Attempt != 0 || in.AwaitDeadline != nil || !slices.Equal(in.Awaits, []string{"go"}) {
		t.Errorf("the woken row is %+v", in)
	}
}

// TestSweepsGoOnWhereTheyEnded: after a full batch at its last lease or deadline, after a short one shortly before its own time. What
// comes later is found from there, and what was left only from the start.
func TestSweepsGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	leases, deadlines := put(t, s, 3), put(t, s, 3)
	overdue := func() {
		exec(t, s, `UPDATE gen_durable SET status = 'executing', locked_by = $1, attempt = 0, lease_expires_at = now() - (10 - id) * interval '1 min' WHERE id = ANY ($2)`,
			alice, leases)
		exec(t, s, `UPDATE gen_durable SET status = 'awaiting_signal', await_deadline = now() - (10 - id) * interval '1 min' WHERE id = ANY ($1)`, deadlines)
	}
	for name, sweep := range map[string]struct {
		make func(context.Context, time.Time, int) (ReapResult, error)
		ids  []int64
	}{"reap": {s.ReapLeases, leases}, "wake": {s.WakeDeadlines, deadlines}} {
		overdue()
		at := func(from time.Time, limit, want int) time.Time {
			t.Helper()
			r, err := sweep.make(ctx, from, limit)
			if err != nil || r.Rows != want {
				t.Errorf("%s: %+v, %v; expected %d rows", name, r, err, want)
			}
			return r.Next
		}
		if now := at(time.Time{}, 0, 0); time.Since(now).Abs() > time.Minute {
			t.Errorf("%s: a look says that the next begins at %v", name, now)
		}
		next := at(time.Time{}, 2, 2)
		if due := value[time.Time](t, s, `SELECT now() - (10 - $1) * interval '1 min'`, sweep.ids[1]); due.Sub(next).Abs() > 50*time.Second {
			t.Errorf("%s: after a full batch the next begins at %v, expected about %v", name, next, due)
		}
		ended := value[time.Time](t, s, `SELECT now()`)
		last := at(next, 2, 1)
		if last.Before(ended.Add(-time.Second)) || last.After(value[time.Time](t, s, `SELECT now()`)) {
			t.Errorf("%s: after the end the next begins at %v, expected about a second before %v", name, last, ended)
		}
		overdue()
		at(last, 10, 0)
		at(time.Time{}, 10, 3)
	}
}

// TestSweepsCostWhatIsDue: the pages that a sweep touches do not grow with the dead rows that an old transaction keeps, when it goes on
// where the last one ended.
func TestSweepsCostWhatIsDue(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	old, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(ctx) }()
	if _, err := old.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM gen_durable`); err != nil {
		t.Fatal(err)
	}
	exec(t, s, `INSERT INTO gen_durable (fsm, step, status, locked_by, lease_expires_at)
		SELECT 'm', 'a', 'executing', 'w', now() - interval '1 h' FROM generate_series(1, 20000)`)
	exec(t, s, `UPDATE gen_durable SET status = 'awaiting_signal', lease_expires_at = NULL, await_deadline = now() - interval '1 h'`)
	exec(t, s, `UPDATE gen_durable SET status = 'done', await_deadline = NULL, updated_at = now() - interval '4 h' + id * interval '1 ms'`)
	var last Position
	for n := 1; n > 0; {
		if n, last, err = s.CollectTerminal(ctx, time.Hour, time.Hour, last, 20_000); err != nil {
			t.Fatal(err)
		}
	}
	id := put(t, s, 1)[0]
	from := time.Now().Add(-30 * time.Minute)
	for name, args := range map[string][2][]any{
		"reap":    {{10, nil}, {10, from}},
		"wake":    {{10, nil}, {10, from}},
		"collect": {{int64(3600e6), int64(3600e6), 10, nil, 0}, {int64(3600e6), int64(3600e6), 10, last.EndedAt, last.ID}},
	} {
		exec(t, s, map[string]string{
			"reap":    `UPDATE gen_durable SET status = 'executing', lease_expires_at = now() - interval '1 min' WHERE id = $1`,
			"wake":    `UPDATE gen_durable SET status = 'awaiting_signal', lease_expires_at = NULL, await_deadline = now() - interval '1 min' WHERE id = $1`,
			"collect": `UPDATE gen_durable SET status = 'done', lease_expires_at = NULL, await_deadline = NULL, updated_at = now() - interval '2 h' WHERE id = $1`,
		}[name], id)
		all, next := pagesOf(t, s, name, args[0]...), pagesOf(t, s, name, args[1]...)
		if next > 200 || all < 10*next {
			t.Errorf("%s touches %d pages, and %d from where the last one ended", name, all, next)
		}
	}
}

// TestSweepsShareTheWork: a sweep passes by the rows that somebody else holds, and never waits (trap 2).
func TestSweepsShareTheWork(t *testing.T) {
	t.Parallel()
	s := open(t)
	put(t, s, 20)
	ids := claimedIDs(claim(t, s, alice, 20))
	expire(t, s)
	held(t, s, ids[3], ids[11])
	r, err := s.ReapLeases(testContext(t), time.Time{}, 100)
	if err != nil || r.Rows != 18 {
		t.Errorf("reaped %+v, %v", r, err)
	}
}
