package flusher

import (
	"errors"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

func continues(id int64, inbox bool) pg.Outcome {
	return pg.Outcome{ID: id, Kind: pg.KindContinue, HasInbox: inbox}
}

// TestWhatTheNextStepSees: rows without signals are answered at once and cost no read, the others share one.
func TestWhatTheNextStepSees(t *testing.T) {
	db := newDatabase()
	b := start(t, db, nil)
	if got := wait1(t, b.commit(continues(1, false), nil)); got.Err != nil || got.Verdict.Status != pg.Executing || got.Next != nil {
		t.Errorf("got %+v", got)
	}
	entered, pass := gate(db)
	first := b.commit(continues(2, false), nil)
	<-entered
	var replies []chan actors.Committed
	for id := int64(3); id < 13; id++ {
		replies = append(replies, b.commit(continues(id, true), nil))
	}
	b.sync()
	pass <- struct{}{}
	pass <- struct{}{}
	wait1(t, first)
	for i, r := range replies {
		id := int64(3 + i)
		if got := wait1(t, r); got.Err != nil || got.Next == nil || got.Next.ID != id || got.Next.Inbox[0].ID != 10*id {
			t.Errorf("%d: got %+v", id, got)
		}
	}
	if db.looks != 1 {
		t.Errorf("%d reads for ten rows of one flush", db.looks)
	}
}

// TestAFailingReadIsTriedAgain, and holds up neither the flusher nor its drain for longer than somebody waits.
func TestAFailingReadIsTriedAgain(t *testing.T) {
	db := newDatabase()
	away := make(chan struct{})
	failed := make(chan struct{}, 1000)
	db.blind = func(look int) error {
		select {
		case <-away:
			return nil
		default:
		}
		failed <- struct{}{}
		if look == 2 {
			panic("told to")
		}
		return errAway
	}
	b := start(t, db, nil)
	r := b.commit(continues(1, true), nil)
	for range 3 {
		wait1(t, failed)
	}
	b.mustCommit(b.ids(2, 3)) // others go on
	done := make(chan struct{})
	b.system.Root.Send(b.pid, actors.Flush{Timeout: time.Hour, Done: done})
	b.sync()
	select {
	case <-done:
		t.Error("the drain ended before the caller was answered")
	default:
	}
	close(away)
	if got := wait1(t, r); got.Err != nil || got.Next == nil {
		t.Errorf("got %+v", got)
	}
	wait1(t, done)
}

func TestNobodyWaitsForAReadForEver(t *testing.T) {
	db := newDatabase()
	failed := make(chan struct{}, 1000)
	db.blind = func(int) error {
		failed <- struct{}{}
		return errAway
	}
	b := start(t, db, nil)
	gone := make(chan struct{})
	r := b.commit(continues(1, true), gone)
	wait1(t, failed)
	close(gone)
	if got := wait1(t, r); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("its row was lost: got %+v", got)
	}
	r = b.commit(continues(2, true), nil)
	wait1(t, failed)
	b.w.cancel()
	if got := wait1(t, r); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("the flusher ends: got %+v", got)
	}
}

// TestAReadOutlivesItsFlusher: the actor fails while what a next step sees is being read.
func TestAReadOutlivesItsFlusher(t *testing.T) {
	db := newDatabase()
	reading, pass := make(chan struct{}), make(chan struct{})
	db.blind = func(int) error {
		reading <- struct{}{}
		<-pass
		return nil
	}
	b := start(t, db, nil)
	r := b.commit(continues(1, true), nil)
	wait1(t, reading)
	b.system.Root.Send(b.pid, panics{})
	close(pass)
	if got := wait1(t, r); got.Err != nil || got.Next == nil {
		t.Errorf("got %+v", got)
	}
	b.mustCommit(b.ids(2))
}
