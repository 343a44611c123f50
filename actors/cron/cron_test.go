package cron

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// book is a Store in memory: where each name stands, and which of them the database refuses.
type book struct {
	mu      sync.Mutex
	now     time.Time
	last    map[string]time.Time
	refuses map[string]error
	fired   []string
}

func (b *book) EnterCron(_ context.Context, names []string) (pg.CronStanding, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := pg.CronStanding{Last: map[string]time.Time{}, Now: b.now}
	for _, n := range names {
		if last, ok := b.last[n]; ok { // the others are being entered by somebody else
			out.Last[n] = last
		}
	}
	return out, nil
}

func (b *book) FireCron(_ context.Context, name string, at time.Time, _ pg.Insertion) (pg.CronFired, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.refuses[name]; err != nil {
		return pg.CronFired{}, err
	}
	b.last[name] = at
	b.fired = append(b.fired, name)
	return pg.CronFired{Claimed: true, ID: int64(len(b.fired))}, nil
}

func (b *book) PassCron(_ context.Context, name string, at time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.refuses[name]; err != nil {
		return err
	}
	b.last[name] = at
	return nil
}

func (b *book) with(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// TestAnEntryBehindThoseThatFailFires: in front of it stand one whose instance cannot be made, one whose making panics, one that
// the database refuses, one whose missed occurrence cannot be passed over, and one that somebody else enters just now.
func TestAnEntryBehindThoseThatFailFires(t *testing.T) {
	t.Parallel()
	refused := errors.New("no such table")
	now := at(t, "2026-03-01T10:00:30Z")
	missed := now.Add(-time.Hour)
	b := &book{now: now, refuses: map[string]error{"refused": refused, "kept": refused}, last: map[string]time.Time{
		"unmade": missed, "panics": missed, "refused": missed, "kept": missed, "good": missed, "better": missed,
	}}
	each := parse(t, "* * * * *", "")
	fine := func(time.Time) (pg.Insertion, error) { return pg.Insertion{Queue: "q"}, nil }
	entries := []Entry{
		{Name: "unmade", Schedule: each, Make: func(time.Time) (pg.Insertion, error) { return pg.Insertion{}, errors.New("bad") }},
		{Name: "panics", Schedule: each, Make: func(time.Time) (pg.Insertion, error) { panic("worse") }},
		{Name: "refused", Schedule: each, Make: fine},
		{Name: "kept", Schedule: parse(t, "0 9 * * *", ""), Missed: None, Make: fine},
		{Name: "entered", Schedule: each, Make: fine},
		{Name: "good", Schedule: each, Make: fine},
		{Name: "better", Schedule: each, Make: fine},
	}
	b.last["kept"] = missed.Add(-24 * time.Hour)
	counters := new(actors.Counters)
	system := actors.NewSystem(slog.New(slog.DiscardHandler))
	pid := system.Root.Spawn(Props(Config{Logger: slog.New(slog.DiscardHandler), Counters: counters, Store: b, Entries: entries}))
	defer func() { _ = system.Root.StopFuture(pid).Wait() }()
	eventually(t, "those behind to fire", func() (ok bool) {
		b.with(func() { ok = slices.Equal(b.fired, []string{"good", "better"}) })
		return ok
	})
	// The next time, too, and however long the pause is that those that fail have come to.
	b.with(func() { b.now = now.Add(time.Minute) })
	eventually(t, "them to fire again", func() (ok bool) {
		b.with(func() { ok = slices.Equal(b.fired, []string{"good", "better", "good", "better"}) })
		return ok
	})
	eventually(t, "the failures to be counted", func() bool { return counters.SweepErrors.Load() >= 2 && counters.CronInserted.Load() == 4 })
	// Nothing of what failed was lost: it fires once it can.
	b.with(func() { clear(b.refuses); b.now = now.Add(2 * time.Minute); b.last["entered"] = b.now })
	eventually(t, "the refused one to fire", func() (ok bool) {
		b.with(func() {
			ok = slices.Contains(b.fired, "refused") && b.last["kept"].Equal(at(t, "2026-03-01T09:00:00Z"))
		})
		return ok
	})
	b.with(func() {
		if slices.Contains(b.fired, "unmade") || slices.Contains(b.fired, "panics") || slices.Contains(b.fired, "kept") {
			t.Errorf("fired %q", b.fired)
		}
	})
}

// TestTheNextLookIsThatOfTheOthers: what fails does not put off when those behind it are due.
func TestTheNextLookIsThatOfTheOthers(t *testing.T) {
	t.Parallel()
	now := at(t, "2026-03-01T10:00:30Z")
	b := &book{now: now, refuses: map[string]error{"refused": errors.New("no")}, last: map[string]time.Time{"refused": now.Add(-time.Hour), "good": now}}
	fine := func(time.Time) (pg.Insertion, error) { return pg.Insertion{}, nil }
	c := &cronActor{Config: Config{Logger: slog.New(slog.DiscardHandler), Store: b, Entries: []Entry{
		{Name: "refused", Schedule: parse(t, "* * * * *", ""), Make: fine}, {Name: "good", Schedule: parse(t, "* * * * * *", ""), Make: fine},
	}}, outages: make([]actors.Outage, 3)}
	if p := c.pass(t.Context()); p.err == nil || p.wait <= 0 || p.wait > time.Second {
		t.Errorf("the pass came to %v, the next is in %v", p.err, p.wait)
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !cond() {
		select {
		case <-late:
			t.Fatalf("waited in vain for %s", what)
		case <-look.C:
		}
	}
}
