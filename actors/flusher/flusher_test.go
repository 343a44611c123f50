package flusher

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

func TestWhatArrivesDuringAFlushIsTheNextBatch(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	entered, pass := gate(db)
	b := start(t, db, nil)
	first := b.ids(1)
	if got := wait1(t, entered); !slices.Equal(got, []int64{1}) {
		t.Fatalf("first flush %v", got)
	}
	rest := b.ids(seq(2, 50)...)
	pass <- struct{}{}
	b.mustCommit(first)
	if got := wait1(t, entered); len(got) != 48 {
		t.Errorf("second flush has %d outcomes, want 48", len(got))
	}
	pass <- struct{}{}
	b.mustCommit(rest)
	if n := b.c.LargestFlush.Load(); n != 48 {
		t.Errorf("largest flush %d", n)
	}
}

func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	entered, pass := gate(db)
	b := start(t, db, func(c *Config) { c.MaxBatch, c.MaxBytes = 10, 4000 })
	all := b.ids(0)
	wait1(t, entered)
	for id := int64(1); id <= 25; id++ {
		all[id] = b.commit(pg.Outcome{ID: id}, nil)
	}
	for id := int64(100); id < 104; id++ {
		all[id] = b.commit(pg.Outcome{ID: id, State: make([]byte, 1900)}, nil)
	}
	all[200] = b.commit(pg.Outcome{ID: 200, State: make([]byte, 9000)}, nil) // larger than a batch may be
	close(pass)
	b.mustCommit(all)
	for _, f := range db.committed() {
		if len(f) > 10 || slices.Contains(f, 101) && len(f) > 8 || slices.Contains(f, 200) && len(f) > 1 {
			t.Errorf("flush %v is too large", f)
		}
	}
}

func TestLingerWaitsForMore(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	b := start(t, db, func(c *Config) { c.Linger, c.MaxBatch = time.Hour, 3 })
	b.mustCommit(b.ids(1, 2, 3)) // full, so it does not wait
	if f := db.committed(); len(f) != 1 {
		t.Errorf("flushes %v", f)
	}
	left := b.ids(4)
	done := make(chan struct{})
	b.system.Root.Send(b.pid, actors.Flush{Done: done})
	b.mustCommit(left)
	wait1(t, done)
}

func TestOnlyTheCulpritIsRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.poison[77] = true
	entered, pass := gate(db)
	b := start(t, db, nil)
	head := b.ids(0)
	wait1(t, entered)
	all := b.ids(seq(1, 200)...)
	close(pass)
	b.mustCommit(head)
	refused := wait1(t, all[77])
	if e, ok := errors.AsType[*actors.RefusedError](refused.Err); !ok || !errors.Is(e, errContent) {
		t.Errorf("the culprit got %v", refused.Err)
	}
	delete(all, 77)
	b.mustCommit(all)
	if b.c.Refused.Load() != 1 {
		t.Errorf("refused %d", b.c.Refused.Load())
	}
	if n := len(db.tries); n > 20 {
		t.Errorf("%d flushes for one culprit among 200", n)
	}
}

func TestALockedRowDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.locked[5] = true
	b := start(t, db, nil)
	slow := b.ids(5)[5]
	b.mustCommit(b.ids(seq(10, 500)...))
	again := b.ids(5)[5]                                                        // known by now
	child := b.commit(pg.Outcome{ID: 600, ParentID: 5, Kind: pg.KindDone}, nil) // needs the parent's lock
	free := b.commit(pg.Outcome{ID: 601, ParentID: 5, Kind: pg.KindAwait}, nil) // does not
	b.mustCommit(map[int64]chan actors.Committed{601: free})
	for b.c.SlowLaneNow.Load() != 3 {
		b.mustCommit(b.ids(700))
	}
	b.mustCommit(b.ids(seq(800, 900)...))
	db.set(db.locked, 5, false)
	b.mustCommit(map[int64]chan actors.Committed{5: slow, 600: child})
	b.mustCommit(map[int64]chan actors.Committed{5: again})
	for b.c.SlowLaneNow.Load() != 0 {
		b.mustCommit(b.ids(700))
	}
	if !b.w.side.nothingBlocked() {
		t.Error("rows are still remembered as locked")
	}
}

func TestALockThatNoRowShows(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.hidden[50] = true
	entered, pass := gate(db)
	b := start(t, db, nil)
	head := b.ids(0)
	wait1(t, entered)
	all := b.ids(seq(1, 100)...)
	close(pass)
	slow := all[50]
	delete(all, 50)
	b.mustCommit(head)
	b.mustCommit(all)
	db.set(db.hidden, 50, false)
	b.mustCommit(map[int64]chan actors.Committed{50: slow})
}

func TestAnEntryInTheSideLaneIsDroppedWhenNobodyWaits(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.locked[5] = true
	b := start(t, db, nil)
	gone := make(chan struct{})
	reply := b.commit(pg.Outcome{ID: 5}, gone)
	for b.c.SlowLaneNow.Load() == 0 {
		b.mustCommit(b.ids(700))
	}
	close(gone)
	if got := wait1(t, reply); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("got %+v", got)
	}
	if b.c.Dropped.Load() != 1 {
		t.Errorf("dropped %d", b.c.Dropped.Load())
	}
}

func TestAnEntryNobodyWaitsForIsNotSent(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	entered, pass := gate(db)
	b := start(t, db, nil)
	head := b.ids(1)
	wait1(t, entered)
	gone := make(chan struct{})
	b.commit(pg.Outcome{ID: 2}, gone)
	rest := b.ids(3)
	close(gone)
	close(pass)
	b.mustCommit(head)
	b.mustCommit(rest)
	for _, f := range db.tries {
		if slices.Contains(f, 2) {
			t.Error("the abandoned entry was sent")
		}
	}
}

func TestTheBatchOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.fail = func(try int) error {
		if try < 20 {
			return errAway
		}
		return nil
	}
	b := start(t, db, nil)
	b.mustCommit(b.ids(seq(0, 30)...))
	if n := b.c.FlushRetries.Load(); n != 19 {
		t.Errorf("retries %d, want 19", n)
	}
	if b.c.Splits.Load() != 0 {
		t.Error("an outage split the batch")
	}
}

func TestCollisionsAreRepeated(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.fail = func(try int) error {
		if try < 3 {
			return errCollided
		}
		return nil
	}
	b := start(t, db, nil)
	b.mustCommit(b.ids(1, 2))
}

func TestAnUnknownErrorRefusesNobody(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.fail = func(try int) error {
		if try < 30 {
			return errors.New("who knows")
		}
		return nil
	}
	b := start(t, db, nil)
	b.mustCommit(b.ids(seq(0, 8)...))
}

func TestAPanicOfTheCommitterIsTheContentsFault(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.onFlush = func(ids []int64) {
		if slices.Contains(ids, 3) {
			panic("cannot encode")
		}
	}
	b := start(t, db, nil)
	all := b.ids(seq(0, 8)...)
	if _, ok := errors.AsType[*actors.RefusedError](wait1(t, all[3]).Err); !ok {
		t.Error("the culprit was not refused")
	}
	delete(all, 3)
	b.mustCommit(all)
}

func TestALargeFanOutIsFlushedAlone(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	b := start(t, db, func(c *Config) { c.MaxChildren = 3 })
	big := b.commit(pg.Outcome{ID: 1, Kind: pg.KindChildren, Children: make([]pg.Insertion, 4)}, nil)
	all := b.ids(seq(2, 10)...)
	all[1] = big
	b.mustCommit(all)
	for _, f := range db.committed() {
		if slices.Contains(f, 1) && len(f) > 1 {
			t.Errorf("flushed with others: %v", f)
		}
	}
}

func TestARestartAnswersWhatWasBufferedAndLosesNothingInFlight(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	entered, pass := gate(db)
	b := start(t, db, nil)
	flying := b.ids(1)
	wait1(t, entered)
	buffered := b.ids(2, 3)
	b.system.Root.Send(b.pid, panics{})
	for id, r := range buffered {
		if got := wait1(t, r); !errors.Is(got.Err, actors.ErrRestarting) {
			t.Errorf("%d got %+v", id, got)
		}
	}
	after := b.ids(4)
	pass <- struct{}{}
	b.mustCommit(flying)
	if got := wait1(t, entered); !slices.Equal(got, []int64{4}) {
		t.Errorf("next flush %v", got)
	}
	pass <- struct{}{}
	b.mustCommit(after)
}

func TestAStopAnswersEverybody(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	entered, pass := gate(db)
	b := start(t, db, nil)
	db.set(db.locked, 9, true)
	flying := b.ids(1)
	wait1(t, entered)
	buffered := b.ids(2)
	b.sync()
	if err := b.system.Root.StopFuture(b.pid).Wait(); err != nil {
		t.Fatal(err)
	}
	if got := wait1(t, buffered[2]); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("the buffered one got %+v", got)
	}
	pass <- struct{}{}
	if got := wait1(t, flying[1]); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("the one in flight got %+v", got)
	}
}

func TestADrainWritesWhatIsHeldAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	entered, pass := gate(db)
	b := start(t, db, func(c *Config) { c.MaxBatch = 2 })
	held := b.ids(1)
	wait1(t, entered)
	for id := int64(2); id < 8; id++ {
		held[id] = b.commit(pg.Outcome{ID: id}, nil)
	}
	done := make(chan struct{})
	b.system.Root.Send(b.pid, actors.Flush{Done: done})
	late := b.ids(99)[99]
	if got := wait1(t, late); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("the late one got %+v", got)
	}
	close(pass)
	b.mustCommit(held)
	wait1(t, done)
	if got := wait1(t, b.ids(100)[100]); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("after the drain: %+v", got)
	}
}

func TestADrainOutlivesARestart(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	entered, pass := gate(db)
	b := start(t, db, nil)
	flying := b.ids(1)
	wait1(t, entered)
	done := make(chan struct{})
	b.system.Root.Send(b.pid, actors.Flush{Done: done})
	b.system.Root.Send(b.pid, panics{})
	b.sync()
	select {
	case <-done:
		t.Error("the drain ended before the flush in flight")
	default:
	}
	close(pass)
	b.mustCommit(flying)
	wait1(t, done)
	if got := wait1(t, b.ids(2)[2]); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("after the drain: %+v", got)
	}
}

func TestTheSideLaneKeepsTheBoundsOfABatch(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.locked[5] = true
	b := start(t, db, func(c *Config) { c.MaxBytes = 4000 })
	all := make(map[int64]chan actors.Committed)
	for id := int64(10); id < 20; id++ {
		all[id] = b.commit(pg.Outcome{ID: id, ParentID: 5, Kind: pg.KindDone, Result: make([]byte, 1500)}, nil)
	}
	for b.c.SlowLaneNow.Load() != 10 {
		b.mustCommit(b.ids(700))
	}
	db.set(db.locked, 5, false)
	b.mustCommit(all)
	for _, f := range db.committed() {
		if len(f) > 2 {
			t.Errorf("flush %v is too large", f)
		}
	}
}

func TestADrainEndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.locked[5] = true
	b := start(t, db, nil)
	slow := b.ids(5)[5]
	done := make(chan struct{})
	b.system.Root.Send(b.pid, actors.Flush{Timeout: 5 * time.Millisecond, Done: done})
	wait1(t, done)
	if got := wait1(t, slow); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("got %+v", got)
	}
}

func TestSettlementsAndAnnouncements(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	log := slog.New(slog.DiscardHandler)
	heard := make(chan any, 10)
	b := &bench{t: t, system: actors.NewSystem(log), c: new(actors.Counters), db: db}
	ear := b.system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		switch ctx.Message().(type) {
		case actors.Settlements, actors.Announce:
			heard <- ctx.Message()
		}
	}))
	defer b.system.Root.Stop(ear)
	b.spawn(Config{Logger: log, Counters: b.c, Main: db, Side: db, Rows: db, Await: ear, Poke: ear, Classify: classifyFake})
	b.mustCommit(map[int64]chan actors.Committed{1: b.commit(pg.Outcome{ID: 1, Kind: pg.KindDone}, nil)})
	if got, ok := wait1(t, heard).(actors.Announce); !ok || !slices.Equal(got.Queues, []string{"q"}) {
		t.Errorf("got %+v, want only the announcement: nobody waits", got)
	}
	b.c.AwaitingNow.Add(1)
	b.mustCommit(map[int64]chan actors.Committed{2: b.commit(pg.Outcome{ID: 2, Kind: pg.KindDone, Result: []byte("7")}, nil)})
	got, ok := wait1(t, heard).(actors.Settlements)
	if !ok || len(got.Settled) != 1 || got.Settled[0].ID != 2 || string(got.Settled[0].Result) != "7" {
		t.Errorf("got %+v", got)
	}
}
