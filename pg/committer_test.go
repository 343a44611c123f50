package pg

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/internal/devpg"
)

// proxied is a second Store on the database of the first, whose connections go through a proxy and wait for locks as long
// as it takes.
func proxied(t *testing.T) (direct, through *Store, proxy *devpg.Proxy) {
	t.Helper()
	direct, host := openWithHost(t, Options{})
	proxy, err := devpg.NewProxy(host.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	cfg, err := pgxpool.ParseConfig(proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 4
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "0"
	cfg.ConnConfig.RuntimeParams["application_name"] = "proxied"
	pool, err := pgxpool.NewWithConfig(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	through, err = Open(testContext(t), pool, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return direct, through, proxy
}

// family is a batch with every rider, and the check that it happened exactly once.
type family struct {
	outcomes                    []Outcome
	parent, next, await, fanOut int64
	handed, kept                int64
}

func newFamily(t *testing.T, s *Store, c *Committer) family {
	t.Helper()
	var f family
	f.parent, _ = spawn(t, s, c, 2)
	rows := claim(t, s, alice, 2)
	put(t, s, 3)
	rows = append(rows, claim(t, s, alice, 3)...)
	f.next, f.await, f.fanOut = rows[2].ID, rows[3].ID, rows[4].ID
	f.handed, f.kept = signal(t, s, f.next, "go"), signal(t, s, f.next, "go")
	signal(t, s, rows[0].ID, "go")
	next, await, fan := outcome(rows[2], alice, KindNext), outcome(rows[3], alice, KindAwait), outcome(rows[4], alice, KindChildren)
	next.Handed = []int64{f.handed}
	await.Awaits = []string{"needle"}
	fan.Children = []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: "kids"}, {Machine: "c", Version: 1, Step: "a", Queue: "kids"}}
	done, stop := outcome(rows[0], alice, KindDone), outcome(rows[1], alice, KindFailed)
	done.HasInbox = true
	f.outcomes = []Outcome{done, stop, next, await, fan}
	return f
}

func (f family) check(t *testing.T, s *Store, got Flushed, assumed bool) {
	t.Helper()
	want := []Status{Done, Failed, Runnable, AwaitingSignal, AwaitingChildren}
	for i, v := range got.Verdicts {
		if v.Fate != Committed || v.Status != want[i] || v.Assumed != assumed {
			t.Errorf("verdict %d is %+v, expected %s (assumed: %v)", i, v, want[i], assumed)
		}
		wantStatus(t, s, want[i], f.outcomes[i].ID)
	}
	for _, q := range []string{"default", "kids"} {
		if !slices.Contains(got.Woken, q) {
			t.Errorf("woken are %v, expected %s among them", got.Woken, q)
		}
	}
	if in := get(t, s, f.parent); in.Status != Runnable || in.ChildrenPending != 0 {
		t.Errorf("the parent is %+v", in)
	}
	if in := get(t, s, f.fanOut); in.ChildrenPending != 2 {
		t.Errorf("the fan-out is %+v", in)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable WHERE parent_id = $1`, f.fanOut); n != 2 {
		t.Errorf("there are %d children, expected 2", n)
	}
	wantInbox(t, s, f.next, f.kept)
	wantInbox(t, s, f.outcomes[0].ID)
}

// carries finds the flush on the wire by a word that only its parameters contain.
func carries(word string) func([]byte) bool {
	return func(client []byte) bool { return bytes.Contains(client, []byte(word)) }
}

// TestLostCommit loses the connection while a flush is on its way: before the server has it, and after it has committed.
// In both cases everything happens exactly once (trap 23).
func TestLostCommit(t *testing.T) {
	t.Parallel()
	for _, delivered := range []bool{false, true} {
		s, through, proxy := proxied(t)
		c := through.NewCommitter("lossy")
		f := newFamily(t, s, s.NewCommitter("direct"))
		put(t, s, 1)
		commitAll(t, c, outcome(claimOne(t, s, alice), alice, KindDone)) // opens the flusher's row
		var cut <-chan struct{}
		if delivered {
			cut = proxy.CutReply(carries("needle"))
		} else {
			cut = proxy.CutRequest(carries("needle"))
		}
		got := flushAll(t, c, f.outcomes...)
		select {
		case <-cut:
		default:
			t.Fatal("the connection was not cut")
		}
		f.check(t, s, got, delivered)
		put(t, s, 1)
		commitAll(t, c, outcome(claim(t, s, bob, 10)[0], bob, KindRetry)) // the next one goes its usual way
	}
}

// TestLostWhileTheBackendWaits asks for the fate of a flush whose backend still works on it: it waits for a row. The
// answer comes when that backend has come to its end, whichever it is.
func TestLostWhileTheBackendWaits(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	for _, survives := range []bool{false, true} {
		exec(t, s, `TRUNCATE gen_durable CASCADE`)
		c := onConn(t, s, "settling").NewCommitter("patient")
		f := newFamily(t, s, s.NewCommitter("setup"))
		if err := c.open(ctx); err != nil {
			t.Fatal(err)
		}
		batch, err := c.distinct(ctx, f.outcomes, nil)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := s.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(ctx, `SELECT 1 FROM gen_durable WHERE id = $1 FOR UPDATE`, f.fanOut); err != nil {
			t.Fatal(err)
		}
		lost := make(chan error, 1)
		backend := onConn(t, s, "backend")
		go func() {
			lost <- backend.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
				return newFlush(s, batch).send(ctx, conn.Conn(), "patient", c.seq, following(c.seq))
			})
		}()
		waiting := `SELECT coalesce(max(pid), 0)::int FROM pg_stat_activity
			WHERE application_name = 'session ' || $1 AND datname = current_database() AND wait_event_type = 'Lock'`
		pid := awaitValue(t, s, func(pid int) bool { return pid != 0 }, waiting, "backend")
		fate := make(chan bool, 1)
		go func() {
			committed, err := c.settle(ctx, errors.New("lost"))
			if err != nil {
				t.Error(err)
			}
			fate <- committed
		}()
		awaitValue(t, s, func(pid int) bool { return pid != 0 }, waiting, "settling")
		if len(fate) > 0 {
			t.Fatal("settled before the backend had ended")
		}
		if !survives {
			exec(t, s, `SELECT pg_terminate_backend($1)`, pid)
			if err := <-lost; err == nil {
				t.Fatal("the flush of a terminated backend returned no error")
			}
			if <-fate {
				t.Error("the backend was terminated, and its flush was settled as committed")
			}
			wantStatus(t, s, Executing, f.next)
			if err := tx.Rollback(ctx); err != nil {
				t.Fatal(err)
			}
			f.check(t, s, flushAll(t, c, f.outcomes...), false)
			continue
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-lost; err != nil {
			t.Fatal(err)
		}
		if !<-fate {
			t.Error("the flush has committed, and was settled as fenced")
		}
		again := newFlush(s, batch)
		if err := c.assume(ctx, again); err != nil {
			t.Fatal(err)
		}
		got := Flushed{Woken: slices.Collect(maps.Keys(again.woken))}
		for _, e := range batch {
			got.Verdicts = append(got.Verdicts, e.verdict)
		}
		f.check(t, s, got, true)
	}
}

// TestCutWhileTheFlushWaits loses the connection in the middle of a flush. The driver then asks the server to cancel it,
// which may come too late: either way everything happens exactly once.
func TestCutWhileTheFlushWaits(t *testing.T) {
	t.Parallel()
	s, through, proxy := proxied(t)
	c := through.NewCommitter("cut")
	f := newFamily(t, s, s.NewCommitter("direct"))
	ctx := testContext(t)
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(ctx, `SELECT 1 FROM gen_durable WHERE id = $1 FOR UPDATE`, f.fanOut); err != nil {
		t.Fatal(err)
	}
	answered := make(chan Flushed, 1)
	go func() {
		got, err := c.Flush(ctx, f.outcomes)
		if err != nil {
			t.Error(err)
		}
		answered <- got
	}()
	awaitValue(t, s, func(n int) bool { return n > 0 }, `SELECT count(*)::int FROM pg_stat_activity
		WHERE application_name = 'proxied' AND datname = current_database() AND wait_event_type = 'Lock'`)
	proxy.Cut()
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	got := <-answered
	f.check(t, s, got, len(got.Verdicts) > 0 && got.Verdicts[0].Assumed)
}

// awaitValue polls a query until its value is good.
func awaitValue[T any](t *testing.T, s *Store, good func(T) bool, sql string, args ...any) T {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		v := value[T](t, s, sql, args...)
		if good(v) {
			return v
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: still %v", sql, v)
		}
	}
}

// TestLateRequestIsFenced: what the old connection still had on its way arrives after the fate was settled.
func TestLateRequestIsFenced(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	c := s.NewCommitter("fence")
	put(t, s, 2)
	rows := claim(t, s, alice, 2)
	commitAll(t, c, outcome(rows[0], alice, KindDone))
	before := c.seq
	committed, err := c.settle(ctx, errors.New("lost"))
	if err != nil || committed {
		t.Fatalf("settled as committed: %v, %v", committed, err)
	}
	late := newFlush(s, []*entry{{Outcome: new(outcome(rows[1], alice, KindDone))}})
	err = s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		return late.send(ctx, conn.Conn(), "fence", before, following(before))
	})
	if !isState(err, "22012") {
		t.Fatalf("the late request got %v", err)
	}
	wantStatus(t, s, Executing, rows[1].ID)
	commitAll(t, c, outcome(rows[1], alice, KindDone))
	// The same question again has the same answer, for a fenced attempt and for one that has committed.
	for range 2 {
		if fenced, exists, err := c.fence(ctx, c.seq, following(c.seq)); fenced || !exists || err != nil {
			t.Errorf("a committed attempt: fenced %v, exists %v, %v", fenced, exists, err)
		}
	}
	before = c.seq
	for range 2 {
		if fenced, _, err := c.fence(ctx, following(before), following(following(before))); !fenced || err != nil {
			t.Errorf("an attempt that was never made: fenced %v, %v", fenced, err)
		}
	}
	// Somebody fenced us: the next flush takes its row back.
	put(t, s, 1)
	commitAll(t, c, outcome(claimOne(t, s, alice), alice, KindDone))
	// The row was collected meanwhile.
	exec(t, s, `DELETE FROM gen_durable_flushers`)
	put(t, s, 1)
	commitAll(t, c, outcome(claimOne(t, s, alice), alice, KindDone))
}

// TestLateQuestions: an opening of the row, or a question about an earlier flush, whose own answers were lost and which
// the server comes to only now, hides no flush that has committed meanwhile, and lets none commit that is given up.
func TestLateQuestions(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	c := s.NewCommitter("late")
	put(t, s, 2)
	rows := claim(t, s, alice, 2)
	if err := c.open(ctx); err != nil {
		t.Fatal(err)
	}
	earlier := following(c.seq)
	if committed, err := c.settle(ctx, errors.New("lost")); committed || err != nil {
		t.Fatalf("a flush that was never sent: committed %v, %v", committed, err)
	}
	for name, late := range map[string]func() error{
		"question": func() error { _, _, err := c.fence(ctx, earlier, following(earlier)); return err },
		"opening":  func() error { return s.NewCommitter("late").open(ctx) },
	} {
		before := c.seq
		commitAll(t, c, outcome(rows[0], alice, KindDone))
		rows = rows[1:]
		c.seq = before // the answer to that was lost
		if err := late(); err != nil {
			t.Fatal(err)
		}
		if committed, err := c.settle(ctx, errors.New("lost")); !committed || err != nil {
			t.Errorf("after a late %s: committed %v, %v", name, committed, err)
		}
	}
	put(t, s, 1)
	row := claimOne(t, s, alice)
	if err := c.open(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.NewCommitter("late").open(ctx); err != nil {
		t.Fatal(err)
	}
	commitAll(t, c, outcome(row, alice, KindDone))
}

// TestLostClaim: rows that were claimed by a statement whose answer was lost go back untouched, those held stay.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	s, through, proxy := proxied(t)
	ctx := testContext(t)
	put(t, s, 5)
	held := claim(t, through, alice, 2)
	cut := proxy.CutReply(carries(alice))
	_, err := through.Claim(ctx, ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: 2})
	<-cut
	if Classify(err) != Connection {
		t.Fatalf("the claim returned %v", err)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable WHERE locked_by = $1`, alice); n != 4 {
		t.Fatalf("%d rows are claimed, expected 4", n)
	}
	n, err := s.ReleaseUnheld(ctx, alice, []int64{held[0].ID, held[1].ID})
	if err != nil || n != 2 {
		t.Fatalf("released %d, %v", n, err)
	}
	wantStatus(t, s, Executing, held[0].ID, held[1].ID)
	for _, row := range claim(t, s, bob, 10) {
		if row.Attempt != 0 || row.Crashes != 0 {
			t.Errorf("the released row counts an attempt: %+v", row)
		}
	}
	if n, err := s.ReleaseUnheld(ctx, alice, nil); err != nil || n != 2 {
		t.Errorf("with nothing held: released %d, %v", n, err)
	}
}

// TestBadDataLeavesTheOthersWhole: a batch that the server refuses changes nothing, and says that data is to blame (trap 8).
func TestBadDataLeavesTheOthersWhole(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("data")
	put(t, s, 2)
	rows := claim(t, s, alice, 2)

	bad := map[string]func(*Outcome){
		"NUL in JSON":        func(o *Outcome) { o.State = []byte(`{"a": "\u0000"}`) },
		"half a surrogate":   func(o *Outcome) { o.State = []byte(`{"a": "\ud800"}`) },
		"invalid UTF-8":      func(o *Outcome) { o.State = []byte("{\"a\": \"\xff\"}") },
		"NUL in a text":      func(o *Outcome) { o.Step = "a\x00b" },
		"no JSON":            func(o *Outcome) { o.State = []byte(`{`) },
		"a number too large": func(o *Outcome) { o.State = []byte(`{"a": 1e200000}`) },
		"too deep":           func(o *Outcome) { o.State = bytes.Repeat([]byte("["), 100000) },
		"key too long": func(o *Outcome) {
			o.Kind = KindChildren
			o.Children = []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: random(t, s, 10000)}}
		},
	}
	for name, spoil := range bad {
		o := outcome(rows[1], alice, KindNext)
		spoil(&o)
		_, err := c.Flush(testContext(t), []Outcome{outcome(rows[0], alice, KindDone), o})
		if Classify(err) != Data {
			t.Errorf("%s: %v, class %v", name, err, Classify(err))
		}
		wantStatus(t, s, Executing, rows[0].ID, rows[1].ID)
	}
	commitAll(t, c, outcome(rows[0], alice, KindDone), outcome(rows[1], alice, KindNext))
}

// random returns n characters that do not compress.
func random(t *testing.T, s *Store, n int) string {
	t.Helper()
	return value[string](t, s, `SELECT substr(string_agg(md5(random()::text), ''), 1, $1) FROM generate_series(0, $1 / 32)`, n)
}

// unsendable is a codec that encodes nothing.
type unsendable struct{ pgtype.Codec }

func (unsendable) PlanEncode(*pgtype.Map, uint32, int16, any) pgtype.EncodePlan { return nil }

// TestUnsendable: a flush that fails on our side of the connection is not sent again and again.
func TestUnsendable(t *testing.T) {
	t.Parallel()
	s := open(t)
	cfg := s.pool.Config()
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterType(&pgtype.Type{Name: "_bool", OID: pgtype.BoolArrayOID, Codec: unsendable{pgtype.BoolCodec{}}})
		return nil
	}
	broken, err := pgxpool.NewWithConfig(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broken.Close)
	own := *s
	own.pool = broken
	put(t, s, 1)
	row := claimOne(t, s, alice)
	if _, err := own.NewCommitter("unsendable").Flush(testContext(t), []Outcome{outcome(row, alice, KindDone)}); err == nil || errors.Is(err, ErrFateUnknown) {
		t.Errorf("the flush returned %v", err)
	}
	wantStatus(t, s, Executing, row.ID)
}

// TestRestartedServer: a flush that meets a server restart is not lost.
func TestRestartedServer(t *testing.T) {
	t.Parallel()
	server := devpg.ServerFor(t, devpg.Options{})
	ctx := testContext(t)
	host, err := pgxpool.New(ctx, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	if err := Migrate(ctx, host); err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, host, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := s.NewCommitter("restart")
	put(t, s, 2)
	rows := claim(t, s, alice, 2)
	commitAll(t, c, outcome(rows[0], alice, KindDone))
	if err := server.Restart(ctx, "immediate"); err != nil {
		t.Fatal(err)
	}
	commitAll(t, c, outcome(rows[1], alice, KindDone))
}

// TestConcurrentCommitters joins one parent from several flushers at once; no decrement may be lost.
func TestConcurrentCommitters(t *testing.T) {
	t.Parallel()
	s := patient(t, open(t))
	const writers, each = 4, 50
	parent, _ := spawn(t, s, s.NewCommitter("first"), writers*each)
	rows := claim(t, s, alice, writers*each)
	var all sync.WaitGroup
	for w := range writers {
		c := s.NewCommitter(string(rune('a' + w)))
		mine := rows[w*each : (w+1)*each]
		all.Go(func() {
			for chunk := range slices.Chunk(mine, 5) {
				outcomes := make([]Outcome, len(chunk))
				for i, row := range chunk {
					outcomes[i] = outcome(row, alice, KindDone)
				}
				if _, err := c.Flush(testContext(t), outcomes); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if in := get(t, s, parent); in.Status != Runnable || in.ChildrenPending != 0 {
		t.Errorf("the parent is %+v", in)
	}
}
