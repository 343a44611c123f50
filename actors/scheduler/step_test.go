package scheduler

import (
	"context"
	"testing"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// A run may lose its row while it waits in the mailbox of its step actor.
func TestARunThatWasLostBeforeItBeganDoesNotBegin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lose func(*run)
		want actors.StepEnd
	}{
		{func(r *run) { r.lose(fsm.ErrLeaseLost) }, actors.EndStale},
		{func(r *run) { r.abandon(fsm.ErrDraining) }, actors.EndAbandoned},
	} {
		began := make(chan struct{}, 1)
		m := fsm.New[struct{}]("m").Step("a", func(context.Context, *fsm.Call[struct{}]) (fsm.Outcome, error) {
			began <- struct{}{}
			return fsm.Done(nil), nil
		})
		cfg := &Config{}
		cfg.fill()
		s := &step{cfg: cfg, life: newLife(nil)}
		r := newRun(actors.RunStep{Claimed: &pg.Claimed{ID: 1, Machine: "m", Version: 1, Step: "a", State: []byte("{}")}, Spec: m.Spec()})
		c.lose(r)
		if e := s.carryOut(r); e.End != c.want {
			t.Errorf("ended as %v, want %v", e.End, c.want)
		}
		s.life.end()
		select {
		case <-began:
			t.Error("the step ran")
		default:
		}
	}
}
