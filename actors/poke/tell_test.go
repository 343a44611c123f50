package poke

import (
	"errors"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

func (r *rig) tell(id int64) {
	r.system.Root.Send(r.pid, actors.Tell{Notice: pg.Notice{Kind: pg.NoticeCancel, Queue: "q", ID: id, Claim: 1}})
}

func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(30 * time.Second):
		t.Fatalf("in vain waited for %s", what)
	}
	panic("unreachable")
}

func TestNoticesThatComeWhileSomeAreSentAreTheNext(t *testing.T) {
	t.Parallel()
	r := wired(t)
	r.tell(1)
	first := receive(t, "the first notice", r.tells)
	for id := range int64(maxNotices + 500) {
		r.tell(2 + id)
	}
	r.announce(0, "q") // all are taken when this one is
	receive(t, "a poke behind the notices", r.pokes)
	if len(first.notices) != 1 || first.notices[0].ID != 1 || len(r.tells) > 0 {
		t.Errorf("sent %+v, and %d more at the same time", first.notices, len(r.tells))
	}
	first.answer <- errors.New("away") // a hint is not repeated
	second := receive(t, "the next notices", r.tells)
	if len(second.notices) != maxNotices || second.notices[0].ID != 2 {
		t.Errorf("%d notices were sent, the first for %d", len(second.notices), second.notices[0].ID)
	}
	second.answer <- nil
	r.tell(7)
	third := receive(t, "a notice after an error", r.tells)
	if len(third.notices) != 1 || third.notices[0].ID != 7 {
		t.Errorf("sent %+v", third.notices)
	}
	third.answer <- nil
	if r.counts.NoticeErrors.Load() != 1 {
		t.Errorf("%d errors were counted", r.counts.NoticeErrors.Load())
	}
}

func TestNoticesOfOthersReachTheirQueues(t *testing.T) {
	t.Parallel()
	r := wired(t, "mine")
	l := receive(t, "the listener", r.listens)
	l.ear.Told(pg.Notice{Kind: pg.NoticePause, Queue: "theirs"})
	want := pg.Notice{Kind: pg.NoticeCancel, Queue: "mine", ID: 4, Claim: 2}
	l.ear.Told(want)
	if got := receive(t, "the notice", r.told); got != want {
		t.Errorf("told %+v, want %+v", got, want)
	}
	if r.counts.NoticesHeard.Load() != 2 {
		t.Errorf("%d notices were counted", r.counts.NoticesHeard.Load())
	}
}
