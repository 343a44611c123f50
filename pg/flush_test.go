package pg

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"
)

// TestOutcomes compares the row after each outcome with the table of the semantics.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("outcomes")
	tests := []struct {
		name                    string
		kind                    Kind
		change                  func(*Outcome)
		status                  Status
		step, state             string
		attempt                 int
		lastError, limit, key   string
		weight                  float64
		awaits                  []string
		inbox                   int // of 3 signals, of which 2 are awaited and handed
		delay, deadline         time.Duration
		result                  string
		crashesKept, shardFreed bool
	}{
		{name: "next", kind: KindNext, status: Runnable, step: "b", state: `{"n": 1}`, key: "k:1", weight: 1, inbox: 1},
		{name: "next with all", kind: KindNext, change: func(o *Outcome) {
			o.Delay, o.RateLimit, o.Weight, o.Key, o.NewKey = 90*24*time.Hour, "other", 2.5, SetKey, "k:2"
		}, status: Runnable, step: "b", state: `{"n": 1}`, key: "k:2", limit: "other", weight: 2.5, inbox: 1, delay: 90 * 24 * time.Hour},
		{name: "next without key", kind: KindNext, change: func(o *Outcome) { o.Key = ReleaseKey },
			status: Runnable, step: "b", state: `{"n": 1}`, weight: 1, inbox: 1},
		{name: "retry", kind: KindRetry, change: func(o *Outcome) { o.Delay, o.Error = 100*365*24*time.Hour, "again" },
			status: Runnable, step: "a", state: `{"n": 1}`, attempt: 4, lastError: "again", key: "k:1", limit: "lim", weight: 3,
			awaits: []string{"go"}, inbox: 3, delay: 100 * 365 * 24 * time.Hour},
		{name: "uncounted retry", kind: KindRetry, change: func(o *Outcome) { o.Uncounted = true; o.State = nil },
			status: Runnable, step: "a", state: `{"n": 0}`, attempt: 3, lastError: "before", key: "k:1", limit: "lim", weight: 3,
			awaits: []string{"go"}, inbox: 3},
		{name: "await", kind: KindAwait, change: func(o *Outcome) {
			o.Awaits, o.Timeout = []string{`q"uo\te`, "käse, {x}"}, 90*24*time.Hour
		}, status: AwaitingSignal, step: "b", state: `{"n": 1}`, key: "k:1", weight: 1, awaits: []string{`q"uo\te`, "käse, {x}"},
			inbox: 3, deadline: 90 * 24 * time.Hour},
		{name: "children", kind: KindChildren, change: func(o *Outcome) {
			o.Children = []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: "elsewhere"}}
		}, status: AwaitingChildren, step: "b", state: `{"n": 1}`, key: "k:1", weight: 1, inbox: 1},
		{name: "no children", kind: KindChildren, status: Runnable, step: "b", state: `{"n": 1}`, key: "k:1", weight: 1, inbox: 1},
		{name: "done", kind: KindDone, change: func(o *Outcome) { o.Result = []byte(`"x"`) }, status: Done, step: "a",
			state: `{"n": 0}`, attempt: 3, limit: "lim", key: "k:1", weight: 3, result: `"x"`},
		{name: "done without a result", kind: KindDone, status: Done, step: "a", state: `{"n": 0}`, attempt: 3, limit: "lim",
			key: "k:1", weight: 3},
		{name: "stop", kind: KindFailed, status: Failed, step: "a", state: `{"n": 0}`, attempt: 3, lastError: "no", limit: "lim",
			key: "k:1", weight: 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exec(t, s, `TRUNCATE gen_durable CASCADE`)
			id := put(t, s, 1, func(i *Insertion) { i.ConcurrencyKey, i.RateLimit, i.Weight = "k:1", "lim", 3 })[0]
			handed := []int64{signal(t, s, id, "go"), signal(t, s, id, "go")}
			signal(t, s, id, "other")
			exec(t, s, `UPDATE gen_durable SET awaits = '{go}', attempt = 3, last_error = 'before', crashes = 2, crash_step = 'a'`)
			row := claimOne(t, s, alice)
			if row.Crashes != 2 || row.Attempt != 3 || len(row.Inbox) != 3 {
				t.Fatalf("the claim shows %+v", row)
			}
			exec(t, s, `UPDATE gen_durable SET concurrency_shard = 3`)
			o := outcome(row, alice, tt.kind)
			o.Handed = handed
			if tt.change != nil {
				tt.change(&o)
			}
			v := commitAll(t, c, o).Verdicts[0]
			in := get(t, s, id)
			if v.Status != tt.status || in.Status != tt.status {
				t.Errorf("the status is %s (verdict: %s), expected %s", in.Status, v.Status, tt.status)
			}
			if in.Step != tt.step || string(in.State) != tt.state || in.Attempt != tt.attempt || in.LastError != tt.lastError ||
				in.ConcurrencyKey != tt.key || in.RateLimit != tt.limit || in.Weight != tt.weight ||
				!slices.Equal(in.Awaits, tt.awaits) || string(in.Result) != tt.result {
				t.Errorf("the row is %+v", in)
			}
			if in.LockedBy != "" || in.LeaseExpiresAt != nil || in.Crashes != 0 {
				t.Errorf("the row is still claimed or counts crashes: %+v", in)
			}
			if n := len(inbox(t, s, id)); n != tt.inbox {
				t.Errorf("%d signals are left, expected %d", n, tt.inbox)
			}
			if value[bool](t, s, `SELECT concurrency_shard IS NOT NULL FROM gen_durable WHERE id = $1`, id) {
				t.Error("the shard was not cleared")
			}
			if got := in.EligibleAt.Sub(in.UpdatedAt); tt.status == Runnable && got != tt.delay {
				t.Errorf("eligible %v after the commit, expected %v", got, tt.delay)
			}
			switch {
			case tt.deadline == 0 && in.AwaitDeadline != nil:
				t.Errorf("there is a deadline: %v", in.AwaitDeadline)
			case tt.deadline != 0 && (in.AwaitDeadline == nil || in.AwaitDeadline.Sub(in.UpdatedAt) != tt.deadline):
				t.Errorf("the deadline is %v, expected %v after the commit", in.AwaitDeadline, tt.deadline)
			}
		})
	}
}

// everyKind returns an outcome of each kind for a claimed row, with all riders that it may have.
func everyKind(row Claimed, worker string, handed []int64) []Outcome {
	var all []Outcome
	for kind := KindNext; kind <= KindFailed; kind++ {
		o := outcome(row, worker, kind)
		o.Handed, o.HasInbox = handed, true
		if kind == KindChildren {
			o.Children = []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: "default"}}
		}
		all = append(all, o)
	}
	return all
}

// TestStaleOutcomesLeaveNoTrace lets a worker that has lost its row, a child with an inbox, come back with each kind of
// outcome, alone and beside an outcome that holds (trap 6).
func TestStaleOutcomesLeaveNoTrace(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("stale")
	for _, beside := range []bool{false, true} {
		exec(t, s, `TRUNCATE gen_durable CASCADE`)
		spawn(t, s, c, 1)
		row := claimOne(t, s, alice)
		handed := []int64{signal(t, s, row.ID, "go")}
		reap(t, s)
		if again := claimOne(t, s, bob); again.Attempt != 1 || again.Crashes != 1 {
			t.Fatalf("the new claim shows %+v", again)
		}
		exec(t, s, `UPDATE gen_durable SET awaits = '{go}' WHERE id = $1`, row.ID)
		for _, o := range everyKind(row, alice, handed) {
			before := snapshot(t, s)
			batch := []Outcome{o}
			if beside {
				put(t, s, 1)
				good := claimOne(t, s, bob)
				batch = append(batch, outcome(good, bob, KindNext))
				exec(t, s, `UPDATE gen_durable SET has_inbox = true WHERE id = $1`, row.ID)
				before = snapshot(t, s)
			}
			f := flushAll(t, c, batch...)
			if f.Verdicts[0].Fate != Stale {
				t.Errorf("kind %d: verdict %+v, expected it to be stale", o.Kind, f.Verdicts[0])
			}
			if beside {
				if f.Verdicts[1].Fate != Committed {
					t.Errorf("kind %d: the outcome beside it got %+v", o.Kind, f.Verdicts[1])
				}
				// Nothing but the good row may have changed.
				exec(t, s, `DELETE FROM gen_durable WHERE id = $1`, batch[1].ID)
				if got := snapshot(t, s); got != withoutLine(before, batch[1].ID) {
					t.Errorf("kind %d changed something:\n%s\nbefore:\n%s", o.Kind, got, before)
				}
			} else if got := snapshot(t, s); got != before {
				t.Errorf("kind %d changed something:\n%s\nbefore:\n%s", o.Kind, got, before)
			}
		}
	}
}

// withoutLine drops the row of an instance from a snapshot.
func withoutLine(snapshot string, id int64) string {
	var kept []byte
	for line := range lines(snapshot) {
		var row struct {
			ID       int64
			TargetID *int64 `json:"target_id"`
		}
		if json.Unmarshal([]byte(line), &row) == nil && row.ID == id && row.TargetID == nil {
			continue
		}
		kept = append(append(kept, line...), '\n')
	}
	return string(kept[:len(kept)-1])
}

// TestOneRowInOneBatchTwice: outcomes of an old and of the new owner, and a repeated one.
func TestOneRowInOneBatchTwice(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("twice")
	put(t, s, 1)
	old := claimOne(t, s, alice)
	handed := []int64{signal(t, s, old.ID, "go")}
	reap(t, s)
	now := claimOne(t, s, bob)
	first := outcome(old, alice, KindNext)
	first.Handed = handed
	f := flushAll(t, c, first, outcome(now, bob, KindAwait), outcome(now, bob, KindDone))
	if f.Verdicts[0].Fate != Stale || f.Verdicts[1].Fate != Committed || f.Verdicts[2].Fate != Stale {
		t.Errorf("the verdicts are %+v", f.Verdicts)
	}
	wantInbox(t, s, old.ID, handed...)
	if v := f.Verdicts[1]; v.Status != Runnable {
		t.Errorf("the await is %s, expected it to be woken by the signal that is there", v.Status)
	}
}

// TestOwnRowClaimedAgain: a worker that lost its row and got the same row back must not commit what it had made of the first
// claim, alone or beside the outcome of the second.
func TestOwnRowClaimedAgain(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("again")
	put(t, s, 1)
	first := claimOne(t, s, alice)
	handed := signal(t, s, first.ID, "go")
	reap(t, s)
	commitAll(t, c, outcome(claimOne(t, s, bob), bob, KindNext)) // elsewhere it goes on
	second := claimOne(t, s, alice)
	for _, o := range everyKind(first, alice, []int64{handed}) {
		before := snapshot(t, s)
		if v := flushAll(t, c, o).Verdicts[0]; v.Fate != Stale || snapshot(t, s) != before {
			t.Errorf("kind %d of the first claim: %+v", o.Kind, v)
		}
	}
	f := flushAll(t, c, outcome(first, alice, KindNext), outcome(second, alice, KindDone))
	if f.Verdicts[0].Fate != Stale || f.Verdicts[1].Fate != Committed {
		t.Errorf("the verdicts are %+v", f.Verdicts)
	}
	wantStatus(t, s, Done, first.ID)
}

// TestAwaitRecheck: an await wakes at once for a signal that is there and was not handed, and only for that (trap 7).
func TestAwaitRecheck(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("recheck")
	id := put(t, s, 1)[0]
	await := func(handed ...int64) Status {
		t.Helper()
		row := claimOne(t, s, alice)
		o := outcome(row, alice, KindAwait)
		o.Handed = handed
		return commitAll(t, c, o).Verdicts[0].Status
	}
	if got := await(); got != AwaitingSignal {
		t.Fatalf("an await without any signal: %s", got)
	}
	signal(t, s, id, "other")
	wantStatus(t, s, AwaitingSignal, id)
	first := signal(t, s, id, "go")
	wantStatus(t, s, Runnable, id)
	if got := await(first); got != AwaitingSignal {
		t.Errorf("awaiting again with the only awaited signal handed: %s, a spinning instance", got)
	}
	second := signal(t, s, id, "go")
	if got := await(first); got != Runnable {
		t.Errorf("awaiting with one of two signals handed: %s", got)
	}
	// Ids commit out of order: an older one that was not handed counts as new.
	if got := await(second); got != Runnable {
		t.Errorf("awaiting with the younger of two signals handed: %s", got)
	}
	if got := await(first, second); got != AwaitingSignal {
		t.Errorf("awaiting with both handed: %s", got)
	}
	signal(t, s, id, "go")
	row := claimOne(t, s, alice)
	if len(row.Inbox) != 4 || row.Inbox[0].Name != "other" {
		t.Errorf("the claim hands over %+v", row.Inbox)
	}
	o := outcome(row, alice, KindNext)
	o.Handed = []int64{first, second}
	commitAll(t, c, o)
	if n := len(inbox(t, s, id)); n != 2 {
		t.Errorf("%d signals are left, expected the other and the latecomer", n)
	}
}

// TestInboxThatCameDuringTheLastStep: the first signal of a row arrives while it runs its last step.
func TestInboxThatCameDuringTheLastStep(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("late")
	id := put(t, s, 1)[0]
	row := claimOne(t, s, alice)
	if row.HasInbox {
		t.Fatal("a fresh row claims to have an inbox")
	}
	signal(t, s, id, "go")
	commitAll(t, c, outcome(row, alice, KindDone))
	wantInbox(t, s, id)
}

// TestCancelRequested turns each kind of outcome into failed, with the riders of an ending and none other.
func TestCancelRequested(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("cancel")
	for kind := KindNext; kind <= KindFailed; kind++ {
		exec(t, s, `TRUNCATE gen_durable CASCADE`)
		parent, _ := spawn(t, s, c, 1)
		row := claimOne(t, s, alice)
		handed := signal(t, s, row.ID, "go")
		if r, err := s.Cancel(testContext(t), s.pool, row.ID, "enough"); err != nil || r.Result != Requested {
			t.Fatalf("cancel: %+v, %v", r, err)
		}
		f := flushAll(t, c, everyKind(row, alice, []int64{handed})[kind])
		if v := f.Verdicts[0]; v.Fate != Cancelled || v.Status != Failed {
			t.Errorf("kind %d: verdict %+v, expected cancelled and failed", kind, v)
		}
		in := get(t, s, row.ID)
		if in.Status != Failed || in.LastError != "cancelled: enough" || in.LockedBy != "" || in.Result != nil {
			t.Errorf("kind %d: the row is %+v", kind, in)
		}
		wantInbox(t, s, row.ID)
		wantStatus(t, s, Runnable, parent)
		if !slices.Equal(f.Woken, []string{"default"}) {
			t.Errorf("kind %d: woken are %v", kind, f.Woken)
		}
		if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable`); n != 2 {
			t.Errorf("kind %d: there are %d rows, expected no children of the cancelled one", kind, n)
		}
	}
}

// TestManyAtOnce flushes more rows than a statement could have parameters (trap 3).
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("many")
	const n = 20000
	put(t, s, n)
	rows := claim(t, s, alice, n)
	if len(rows) != n {
		t.Fatalf("claimed %d", len(rows))
	}
	outcomes := make([]Outcome, n)
	for i, row := range rows {
		outcomes[i] = outcome(row, alice, []Kind{KindNext, KindRetry, KindAwait, KindDone}[i%4])
	}
	slices.Reverse(outcomes)
	commitAll(t, c, outcomes...)
	got := map[string]int{}
	for _, st := range []Status{Runnable, AwaitingSignal, Done} {
		got[string(st)] = value[int](t, s, `SELECT count(*)::int FROM gen_durable WHERE status = $1`, string(st))
	}
	if want := map[string]int{"runnable": n / 2, "awaiting_signal": n / 4, "done": n / 4}; !reflect.DeepEqual(got, want) {
		t.Errorf("the statuses are %v, expected %v", got, want)
	}
}
