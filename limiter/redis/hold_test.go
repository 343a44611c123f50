package redislimiter

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gendurable/gendurable/limiter"
)

const ages = 1_000_000 * time.Hour

// asking are n rows, from the number on, that ask for these keys.
func asking(from, n int, gate, rate string) []limiter.Request {
	rows := make([]limiter.Request, n)
	for i := range rows {
		rows[i] = limiter.Request{ID: int64(from + i), Claim: 1, Gate: gate, Rate: rate, Weight: 1}
	}
	return rows
}

func slotsOf(rows []limiter.Request) (slots []limiter.Slot) {
	for _, r := range rows {
		slots = append(slots, limiter.Slot{ID: r.ID, Claim: r.Claim, Key: r.Gate})
	}
	return slots
}

func releases(rows []limiter.Request) (released []limiter.Release) {
	for _, s := range slotsOf(rows) {
		released = append(released, limiter.Release{Slot: s})
	}
	return released
}

// granted asks, and returns how many are admitted. From any goroutine.
func granted(t testing.TB, l *Limiter, rows []limiter.Request) (n int) {
	t.Helper()
	d, err := l.Admit(t.Context(), "", rows)
	if err != nil {
		t.Error(err)
	}
	for _, one := range d {
		if one.Verdict == limiter.Admitted {
			n++
		}
	}
	return n
}

// want asks, and expects so many to be admitted.
func want(t testing.TB, what string, n int, l *Limiter, rows []limiter.Request) {
	t.Helper()
	if got := granted(t, l, rows); got != n {
		t.Fatalf("%s: admitted are %d, expected %d", what, got, n)
	}
}

func configure(t testing.TB, l *Limiter, c limiter.Config) limiter.Config {
	t.Helper()
	inForce, err := l.SyncConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return inForce
}

func renew(t testing.TB, l *Limiter, rows []limiter.Request, lease time.Duration) {
	t.Helper()
	if err := l.Renew(t.Context(), slotsOf(rows), lease); err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

func gate(limit int) limiter.Config {
	return limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: limit}}}
}

// TestLeasesEnd: who does not renew loses the slot, and nobody else does.
func TestLeasesEnd(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := newLimiter(t, s.client(t), Options{Lease: 100 * time.Millisecond})
	configure(t, l, gate(4))
	rows := asking(1, 4, "g", "")
	want(t, "a cold gate", 4, l, rows)
	renew(t, l, rows[:2], time.Hour)
	total := limiter.Reconciled{}
	eventually(t, "two leases have ended", func() bool {
		r, err := l.Reconcile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		total = total.Add(r)
		return total.Healed >= 2
	})
	long := newLimiter(t, s.client(t), Options{})
	want(t, "after two have ended", 2, long, asking(10, 4, "g", ""))
	want(t, "those renewed have theirs", 2, long, rows[:2])
	// The next admission finds what has ended as well, without a reconcile.
	vanish(t, long, slotsOf(rows[:1]))
	want(t, "after a third", 1, long, asking(20, 4, "g", ""))
	if total.Healed != 2 {
		t.Errorf("%+v", total)
	}
}

// TestRenewRevivesNobody: a slot that is given back while it is renewed stays free; one whose row still runs although
// its lease has ended is counted again.
func TestRenewRevivesNobody(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, start(t).client(t), Options{})
	configure(t, l, gate(2))
	rows := asking(1, 2, "g", "")
	want(t, "a cold gate", 2, l, rows)
	for range 2 {
		if err := l.Credit(t.Context(), releases(rows[:1])); err != nil {
			t.Fatal(err)
		}
	}
	renew(t, l, rows, time.Hour)
	want(t, "one given back", 1, l, asking(10, 2, "g", ""))

	vanish(t, l, slotsOf(rows[1:]))
	want(t, "one whose lease has ended", 1, l, asking(20, 2, "g", ""))
	renew(t, l, rows[1:], time.Hour)
	renew(t, l, rows[1:], time.Hour)
	if err := l.Credit(t.Context(), releases(asking(10, 1, "g", ""))); err != nil {
		t.Fatal(err)
	}
	want(t, "of three holders one has gone", 0, l, asking(30, 2, "g", ""))
	if _, ok := l.missing[l.slot(slotsOf(rows)[1])]; ok {
		t.Error("a slot that is counted again is still remembered as missing")
	}
}

// TestClaimsAreApart: a late credit of an earlier claim, or of another database's row, frees nothing.
func TestClaimsAreApart(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := newLimiter(t, s.client(t), Options{})
	other := newLimiter(t, s.client(t), Options{Origin: "other"})
	configure(t, l, gate(3))
	first := asking(1, 1, "g", "")
	again := asking(1, 1, "g", "")
	again[0].Claim++
	for _, rows := range [][]limiter.Request{first, again} {
		want(t, "a row", 1, l, rows)
	}
	want(t, "the row of the same number elsewhere", 1, other, first)
	want(t, "full", 0, l, asking(10, 1, "g", ""))
	for range 2 {
		if err := l.Credit(t.Context(), releases(first)); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "one of the three", 1, l, asking(10, 2, "g", ""))
}

// TestNothingStaysBehind: keys at rest, and those of removed limits, leave nothing in Redis.
func TestNothingStaysBehind(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, start(t).client(t), Options{})
	configure(t, l, limiter.Config{
		Gates: []limiter.Gate{{Name: "g", Limit: 2}},
		Rates: []limiter.Rate{{Name: "slow", Allowed: 2, Per: ages}, {Name: "fast", Allowed: 1e6, Per: time.Second}},
	})
	for i, partition := range []string{":a", ":b", ":c"} {
		rows := asking(10*i, 1, "g"+partition, "")
		want(t, "gate", 1, l, rows)
		if err := l.Credit(t.Context(), releases(rows)); err != nil {
			t.Fatal(err)
		}
		want(t, "slow", 1, l, asking(1, 1, "", "slow"+partition))
		want(t, "fast", 1, l, asking(1, 1, "", "fast"+partition))
	}
	want(t, "held", 1, l, asking(100, 1, "g:held", ""))
	swept := 0
	reconcile := func() int {
		r, err := l.Reconcile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		swept += r.Swept
		return swept
	}
	eventually(t, "what is at rest is forgotten", func() bool { return reconcile() >= 6 })
	if swept != 6 {
		t.Errorf("forgotten are %d keys, expected 6", swept)
	}
	want(t, "a bucket that is not full", 1, l, asking(1, 3, "", "slow:a"))
	if err := l.RemoveConfig(t.Context(), limiter.Name{Kind: limiter.KindRate, Name: "slow"}); err != nil {
		t.Fatal(err)
	}
	if reconcile() != 9 {
		t.Errorf("forgotten are %d keys, expected three more for the removed limit", swept)
	}
	if err := l.Credit(t.Context(), releases(asking(100, 1, "g:held", ""))); err != nil {
		t.Fatal(err)
	}
	reconcile()
	if left := l.client.Keys(t.Context(), "*").Val(); len(left) != 1 || left[0] != l.limits() {
		t.Errorf("Redis still has %v", left)
	}
}

// wire counts commands and loses answers.
type wire struct {
	mu    sync.Mutex
	sent  []string
	loses string // the command whose answer is lost, once
}

var errCut = errors.New("the line was cut")

func (w *wire) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *wire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		w.send(cmd.Name(), cmd)
		w.mu.Lock()
		lost := w.loses != "" && cmd.Name() == w.loses
		if lost {
			w.loses = ""
		}
		w.mu.Unlock()
		err := next(ctx, cmd)
		if lost {
			cmd.SetErr(errCut)
			return errCut
		}
		return err
	}
}

func (w *wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		w.send("pipeline", cmds[0])
		return next(ctx, cmds)
	}
}

// send notes what is sent, but for the greeting of a new connection.
func (w *wire) send(what string, first redis.Cmder) {
	if first.Name() == "hello" || first.Name() == "client" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, what)
}

// counted is what do has sent.
func (w *wire) counted(do func()) string {
	w.mu.Lock()
	w.sent = nil
	w.mu.Unlock()
	do()
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.sent, " ")
}

// TestRoundTrips: a batch is one, whatever its keys; so is a number of credits, and of renewals.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	client, w := start(t).client(t), new(wire)
	l := newLimiter(t, client, Options{})
	configure(t, l, limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 9}}, Rates: []limiter.Rate{{Name: "r", Allowed: 1000, Per: time.Second}}})
	var rows []limiter.Request
	for i, keys := range [][2]string{{"g", ""}, {"g:a", "r"}, {"g:b", "r:b"}, {"", "r"}, {"none", ""}} {
		rows = append(rows, asking(100*i, 5, keys[0], keys[1])...)
	}
	want(t, "the first time", 20, l, rows) // the server learns the scripts
	renew(t, l, rows[:15], time.Hour)
	client.AddHook(w)
	for what, c := range map[string]struct {
		do   func()
		want string
	}{
		"Admit":         {func() { want(t, "again", 20, l, rows) }, "evalsha"},
		"Admit nothing": {func() { want(t, "no limits", 3, l, asking(1, 3, "", "")) }, ""},
		"Credit": {func() {
			if err := l.Credit(t.Context(), releases(rows[:15])); err != nil {
				t.Error(err)
			}
		}, "pipeline"},
		"Renew":      {func() { renew(t, l, rows[:15], time.Hour) }, "evalsha"},
		"SyncConfig": {func() { configure(t, l, limiter.Config{}) }, "evalsha"},
	} {
		if got := w.counted(c.do); got != c.want {
			t.Errorf("%s sends %q, expected %q", what, got, c.want)
		}
	}
}

// TestLostAnswers: slots that were taken although the caller does not know are given back before the next admission.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	client, w := start(t).client(t), new(wire)
	l := newLimiter(t, client, Options{})
	configure(t, l, gate(2))
	want(t, "one", 1, l, asking(1, 1, "g", ""))
	client.AddHook(w)
	w.loses = "evalsha"
	if _, err := l.Admit(t.Context(), "", asking(10, 3, "g", "")); !errors.Is(err, limiter.ErrUncertain) || !errors.Is(err, errCut) {
		t.Fatalf("a lost answer: %v", err)
	}
	if n := client.ZCard(t.Context(), l.holders("g")).Val(); n != 2 {
		t.Fatalf("%d hold slots, expected the call to have been carried out", n)
	}
	want(t, "when asked again", 1, l, asking(20, 3, "g", ""))
}

// TestOptions: what is wrong is said before anything is sent.
func TestOptions(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "nowhere.invalid:1"})
	defer func() { _ = client.Close() }()
	for want, o := range map[string]Options{"": {}, "Namespace": {Namespace: "a{b}"}, "Lease": {Lease: -1}} {
		if _, err := New(client, o); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, expected %q", o, err, want)
		}
	}
	if _, err := New(nil, Options{}); err == nil {
		t.Error("a nil client was taken")
	}
}
