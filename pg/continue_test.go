package pg

import (
	"context"
	"slices"
	"testing"
	"time"
)

// TestContinue compares the row after a continuation with the table of the semantics, and with what it must not touch.
func TestContinue(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("continue")
	id := put(t, s, 1, func(i *Insertion) { i.ConcurrencyKey, i.RateLimit, i.Weight = "k:1", "lim", 3 })[0]
	handed := []int64{signal(t, s, id, "go"), signal(t, s, id, "go")}
	kept := signal(t, s, id, "go")
	exec(t, s, `UPDATE gen_durable SET awaits = '{go}', attempt = 3, last_error = 'before', crashes = 2, crash_step = 'a'`)
	row := claimOne(t, s, alice)
	exec(t, s, `UPDATE gen_durable SET concurrency_shard = 3`)
	before := get(t, s, id)
	o := outcome(row, alice, KindContinue)
	o.Handed = handed
	f := commitAll(t, c, o)
	if v := f.Verdicts[0]; v.Status != Executing || !v.HasInbox || v.HasChildren || len(f.Woken) != 0 {
		t.Errorf("the flush says %+v", f)
	}
	in := get(t, s, id)
	if in.Status != Executing || in.Step != "b" || string(in.State) != `{"n": 1}` || in.Attempt != 0 || in.LastError != "" ||
		in.Awaits != nil || in.RateLimit != "" || in.Weight != 1 || in.Crashes != 0 {
		t.Errorf("the row is %+v", in)
	}
	if in.LockedBy != alice || !in.LeaseExpiresAt.Equal(*before.LeaseExpiresAt) || !in.EligibleAt.Equal(before.EligibleAt) ||
		!in.UpdatedAt.Equal(before.UpdatedAt) || in.ConcurrencyKey != "k:1" {
		t.Errorf("the claim was touched: %+v, it was %+v", in, before)
	}
	if n := value[int](t, s, `SELECT claims + concurrency_shard FROM gen_durable`); n != row.Claim+3 {
		t.Errorf("claims and shard make %d, expected %d", n, row.Claim+3)
	}
	wantInbox(t, s, id, kept)
	next := []Claimed{{ID: id, HasInbox: true}}
	if err := s.Enrich(testContext(t), next); err != nil || len(next[0].Inbox) != 1 || next[0].Inbox[0].ID != kept {
		t.Errorf("the next step sees %+v, %v", next, err)
	}
	if again := claim(t, s, bob, 10); len(again) != 0 {
		t.Errorf("a continued row was claimed: %+v", again)
	}
	commitAll(t, c, outcome(row, alice, KindDone)) // the same claim goes to the end
	wantStatus(t, s, Done, id)
	wantInbox(t, s, id)
}

// TestContinueReleasesTheKey: the row runs on without its key, and the next row of the key can be claimed.
func TestContinueReleasesTheKey(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("release")
	ids := put(t, s, 2, func(i *Insertion) { i.ConcurrencyKey = "k" })
	first := claimOne(t, s, alice)
	commitAll(t, c, outcome(first, alice, KindContinue))
	if rows := claim(t, s, bob, 10); len(rows) != 0 {
		t.Fatalf("the key is kept, and yet %+v was claimed", rows)
	}
	exec(t, s, `UPDATE gen_durable SET concurrency_shard = 1 WHERE id = $1`, first.ID)
	o := outcome(first, alice, KindContinue)
	o.Key = ReleaseKey
	f := commitAll(t, c, o)
	if f.Verdicts[0].Status != Executing || !slices.Equal(f.Woken, []string{"default"}) {
		t.Errorf("the flush says %+v", f)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable WHERE concurrency_key IS NULL AND concurrency_shard IS NULL`); n != 1 {
		t.Errorf("%d rows are without key and shard", n)
	}
	if second := claimOne(t, s, bob); second.ID != ids[1] || get(t, s, first.ID).Status != Executing {
		t.Errorf("then %+v was claimed", second)
	}
}

// TestContinueIsHOT: a chain makes no index entry and leaves nothing for vacuum.
func TestContinueIsHOT(t *testing.T) {
	t.Parallel()
	s := onConn(t, open(t), "hot")
	c := s.NewCommitter("hot")
	put(t, s, 1)
	row := claimOne(t, s, alice)
	updates := func() (n [2]int) {
		exec(t, s, `SELECT pg_stat_force_next_flush()`)
		return [2]int(value[[]int](t, s, `SELECT ARRAY[n_tup_upd, n_tup_hot_upd]::int[] FROM pg_stat_user_tables WHERE relname = 'gen_durable'`))
	}
	sizes := `SELECT sum(pg_relation_size(indexrelid))::bigint FROM pg_index WHERE indrelid = 'gen_durable'::regclass`
	before, size := updates(), value[int64](t, s, sizes)
	// So few that they fit into the page. More do when old versions are cleared away, which transactions of others may delay.
	const steps = 20
	for range steps {
		commitAll(t, c, outcome(row, alice, KindContinue))
	}
	after := updates()
	if all, hot := after[0]-before[0], after[1]-before[1]; all != steps || hot != all {
		t.Errorf("%d of %d updates were HOT, expected all of %d", hot, all, steps)
	}
	if grown := value[int64](t, s, sizes) - size; grown != 0 {
		t.Errorf("the indexes have grown by %d bytes", grown)
	}
}

// TestContinueOfACancelledRow: the request ends the row, its inbox goes, its parent is told.
func TestContinueOfACancelledRow(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("cancelled")
	parent, children := spawn(t, s, c, 1)
	row := claimOne(t, s, alice)
	signal(t, s, row.ID, "go")
	commitAll(t, c, outcome(row, alice, KindContinue))
	if r, err := s.Cancel(testContext(t), s.pool, row.ID, "enough"); err != nil || r.Result != Requested {
		t.Fatalf("%+v, %v", r, err)
	}
	f := flushAll(t, c, outcome(row, alice, KindContinue))
	if v := f.Verdicts[0]; v.Fate != Cancelled || v.Status != Failed || !slices.Contains(f.Woken, "default") {
		t.Errorf("the flush says %+v", f)
	}
	if in := get(t, s, children[0]); in.Status != Failed || in.LastError != "cancelled: enough" {
		t.Errorf("the row is %+v", in)
	}
	wantInbox(t, s, row.ID)
	wantStatus(t, s, Runnable, parent)
}

// TestContinueSeesTheSignalItWaitedFor: a delivery holds the row; that there is an inbox is told as of the row under its lock.
func TestContinueSeesTheSignalItWaitedFor(t *testing.T) {
	t.Parallel()
	s := open(t)
	put(t, s, 1)
	row := claimOne(t, s, alice)
	opened := s.NewCommitter("worker")
	if err := opened.open(testContext(t)); err != nil {
		t.Fatal(err)
	}
	var got Flushed
	moves := map[string]move{
		"signal": signalling(row.ID),
		"continue": func(ctx context.Context, own *Store, _ DB) (err error) {
			c := own.NewCommitter("worker")
			c.seq = opened.seq
			got, err = c.Flush(ctx, []Outcome{outcome(row, alice, KindContinue)})
			return err
		},
	}
	interleave(t, s, moves, `
		host    begin
		host    signal
		worker  continue     blocks
		host    commit
		worker  resumes`)
	if v := got.Verdicts[0]; v.Fate != Committed || v.Status != Executing || !v.HasInbox {
		t.Errorf("the verdict is %+v", v)
	}
}

// TestLostCommitOfAChain loses the connection while a continuation is on its way: before the server has it, and after it
// has committed.
func TestLostCommitOfAChain(t *testing.T) {
	t.Parallel()
	for _, delivered := range []bool{false, true} {
		s, through, proxy := proxied(t)
		c := through.NewCommitter("lossy")
		put(t, s, 1)
		commitAll(t, c, outcome(claimOne(t, s, alice), alice, KindDone)) // opens the flusher's row
		put(t, s, 1)
		row := claimOne(t, s, alice)
		handed, kept := signal(t, s, row.ID, "go"), signal(t, s, row.ID, "go")
		o := outcome(row, alice, KindContinue)
		o.Step, o.Handed = "needle", []int64{handed}
		var cut <-chan struct{}
		if delivered {
			cut = proxy.CutReply(carries("needle"))
		} else {
			cut = proxy.CutRequest(carries("needle"))
		}
		v := flushAll(t, c, o).Verdicts[0]
		select {
		case <-cut:
		default:
			t.Fatal("the connection was not cut")
		}
		if v.Fate != Committed || v.Status != Executing || !v.HasInbox || v.HasChildren || v.Assumed != delivered {
			t.Errorf("the verdict is %+v", v)
		}
		if in := get(t, s, row.ID); in.Status != Executing || in.Step != "needle" || in.LockedBy != alice {
			t.Errorf("the row is %+v", in)
		}
		wantInbox(t, s, row.ID, kept)
		commitAll(t, c, outcome(row, alice, KindDone))
	}
}

// TestAnAssumedContinuationLooksBeforeItGoesOn: between the commit that nobody heard of and the answer, the row may have been
// taken, or claimed anew by the same worker, or its cancel requested (trap 23).
func TestAnAssumedContinuationLooksBeforeItGoesOn(t *testing.T) {
	t.Parallel()
	s := open(t)
	for name, tt := range map[string]struct {
		meanwhile func(Claimed)
		fate      Fate
		status    Status
	}{
		"nothing": {func(Claimed) {}, Committed, Executing},
		"reaped":  {func(Claimed) { reap(t, s) }, Committed, Runnable},
		"taken": {func(Claimed) {
			reap(t, s)
			claimOne(t, s, bob)
		}, Committed, Runnable},
		"claimed anew": {func(Claimed) {
			reap(t, s)
			claimOne(t, s, alice)
		}, Committed, Runnable},
		"cancelled": {func(row Claimed) {
			if _, err := s.Cancel(testContext(t), s.pool, row.ID, "enough"); err != nil {
				t.Fatal(err)
			}
		}, Cancelled, Failed},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			exec(t, s, `TRUNCATE gen_durable CASCADE`)
			c := s.NewCommitter("assuming " + name)
			put(t, s, 1, func(i *Insertion) { i.ConcurrencyKey = "k" })
			row := claimOne(t, s, alice)
			o := outcome(row, alice, KindContinue)
			o.Key = ReleaseKey
			if err := c.open(ctx); err != nil {
				t.Fatal(err)
			}
			batch, err := c.distinct(ctx, []Outcome{o}, nil)
			if err != nil {
				t.Fatal(err)
			}
			f := newFlush(s, batch)
			if _, err := c.try(ctx, f, 0); err != nil {
				t.Fatal(err)
			}
			c.seq = following(c.seq)
			tt.meanwhile(row)
			if err := c.assume(ctx, f); err != nil {
				t.Fatal(err)
			}
			_, woken := f.woken["default"]
			c.endCancelled(ctx, f)
			if v := f.entries[0].verdict; v.Fate != tt.fate || v.Status != tt.status || v.Assumed != (tt.fate == Committed) {
				t.Errorf("the verdict is %+v", v)
			}
			if alive := tt.fate == Committed && name != "taken" && name != "claimed anew"; alive && !woken {
				t.Error("the queue is not told that a key was released, or a row runnable")
			}
		})
	}
}

// TestChainRoundTrips: ten steps without an inbox are one claim and ten flushes.
func TestChainRoundTrips(t *testing.T) {
	t.Parallel()
	direct := open(t)
	s, trips := counted(t, direct)
	c := s.NewCommitter("chain")
	for round := range 2 {
		put(t, direct, 1)
		if round == 1 {
			trips.take() // the first one prepares
		}
		row := claimOne(t, s, alice)
		for step := range 10 {
			kind := KindContinue
			if step == 9 {
				kind = KindDone
			}
			v := commitAll(t, c, outcome(row, alice, kind)).Verdicts[0]
			next := []Claimed{{ID: row.ID, HasInbox: v.HasInbox, HasChildren: v.HasChildren}}
			if err := s.Enrich(testContext(t), next); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := trips.take(); n != 11 {
		t.Errorf("a chain of ten steps took %d round trips, expected 11", n)
	}
	put(t, direct, 1)
	row := claimOne(t, s, alice)
	signal(t, direct, row.ID, "go")
	trips.take()
	v := commitAll(t, c, outcome(row, alice, KindContinue)).Verdicts[0]
	next := []Claimed{{ID: row.ID, HasInbox: v.HasInbox, HasChildren: true}}
	if err := s.Enrich(testContext(t), next); err != nil || len(next[0].Inbox) != 1 {
		t.Fatalf("%+v, %v", next, err)
	}
	trips.take()
	if err := s.Enrich(testContext(t), next); err != nil {
		t.Fatal(err)
	}
	if n := trips.take(); n != 1 {
		t.Errorf("the look at inboxes and children took %d round trips", n)
	}
}

// TestALeaseIsExtendedDuringAChain: heartbeats and continuations alternate on one row.
func TestALeaseIsExtendedDuringAChain(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("beaten")
	put(t, s, 1)
	row := claimOne(t, s, alice)
	for range 3 {
		commitAll(t, c, outcome(row, alice, KindContinue))
		expire(t, s)
		if beats, err := s.Heartbeat(testContext(t), alice, time.Hour, []int64{row.ID}); err != nil || beats[0].State != Extended {
			t.Fatalf("%+v, %v", beats, err)
		}
	}
	commitAll(t, c, outcome(row, alice, KindNext))
	wantStatus(t, s, Runnable, row.ID)
}
