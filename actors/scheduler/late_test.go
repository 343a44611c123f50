package scheduler

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// runsOnce expects that a row which runs is still held, by its claim of that number, and lets it come to its end.
func (h *house) runsOnce(id int64, claim int, job *blocking) {
	h.t.Helper()
	if e := h.table.look(id); e.status != pg.Executing || e.Claim != claim {
		h.t.Errorf("the row that runs is %s, by its claim %d", e.status, e.Claim)
	}
	close(job.goOn)
	h.until("it is done", func() bool { return h.table.look(id).status == pg.Done })
	if n := job.runs.Load(); n != 1 {
		h.t.Errorf("it ran %d times", n)
	}
}

// lateReleases is a table whose first release is executed late: when the test says so.
type lateReleases struct {
	*table
	first           *sync.Once
	executed, asked chan struct{}
}

func (l lateReleases) Release(ctx context.Context, worker string, claims []pg.ClaimRef) (int, error) {
	late := false
	l.first.Do(func() { late = true })
	if late {
		l.asked <- struct{}{}
		<-l.asked
		defer close(l.executed)
	}
	return l.table.Release(ctx, worker, claims)
}

// TestALateReleaseLeavesTheNextClaimAlone: a row was claimed before a pause and goes back; but before that release is executed the row
// is found unheld, given back, claimed anew and run. It is not the release's to give back any more: another node would run it beside.
func TestALateReleaseLeavesTheNextClaimAlone(t *testing.T) {
	t.Parallel()
	answers := make(chan struct{})
	late := lateReleases{first: new(sync.Once), executed: make(chan struct{}), asked: make(chan struct{})}
	long := newBlocking("long")
	h := openWith(t, func(h *house, c *Config) {
		h.table.answers, late.table = answers, h.table
		c.Store = late
	}, long)
	id := h.add("long", 1)[0]
	h.until("the row is claimed", func() bool { return h.table.count(pg.Executing) == 1 })
	h.system.Root.Send(h.child(actors.NameScheduler), actors.QueuePaused{}) // it has it before the answer of the claim
	answers <- struct{}{}
	receive(t, "the release of the row", late.asked)
	close(answers)
	h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{}) // its next life looks for what is unheld
	receive(t, "the row runs", long.running)
	late.asked <- struct{}{}
	receive(t, "the late release", late.executed)
	h.runsOnce(id, 2, long)
}

// lateLooks is a table whose first look at what is unheld is late.
type lateLooks struct {
	*table
	first       *sync.Once
	asked, over chan struct{}
}

func (l lateLooks) ReleaseUnheld(ctx context.Context, worker string, held []int64) (int, error) {
	late := false
	l.first.Do(func() { late = true })
	if late {
		close(l.asked)
		<-time.After(100 * time.Millisecond)
		defer close(l.over)
	}
	return l.table.ReleaseUnheld(ctx, worker, held)
}

// TestALateLookGivesBackNothingOfTheNextLife: the scheduler fails while it looks for what is unheld. What the next one claims is not
// among what that look knows, so it must not claim before it is over.
func TestALateLookGivesBackNothingOfTheNextLife(t *testing.T) {
	t.Parallel()
	late := lateLooks{first: new(sync.Once), asked: make(chan struct{}), over: make(chan struct{})}
	long := newBlocking("long")
	h := openWith(t, func(h *house, c *Config) {
		late.table = h.table
		c.Store = late
	}, long)
	crash := func() { h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{}) }
	h.until("it has begun", func() bool { return h.counts.Claims.Load() > 0 })
	crash()
	receive(t, "the second life looks", late.asked)
	crash()
	id := h.add("long", 1)[0]
	receive(t, "the row runs", long.running)
	receive(t, "the end of the late look", late.over)
	h.runsOnce(id, 1, long)
}

// TestAClaimThatOutlivesItsSchedulerLosesNoRows: rows that were claimed for a scheduler that failed meanwhile are
// given back at once, by its next life.
func TestAClaimThatOutlivesItsSchedulerLosesNoRows(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	answers := make(chan struct{})
	h := open(t, func(c *Config) { c.Store.(*table).answers = answers }, quick("quick", &ran))
	h.add("quick", 5)
	h.until("five rows are claimed", func() bool { return h.table.count(pg.Executing) == 5 })
	h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{})
	h.until("its next life gives back what it does not know", func() bool { return h.counts.Unheld.Load() == 5 })
	h.until("and claims them anew", func() bool { return h.table.count(pg.Executing) == 5 })
	answers <- struct{}{} // whichever of the two is answered first
	answers <- struct{}{}
	close(answers)
	h.until("all jobs are done", func() bool { return h.table.count(pg.Done) == 5 })
	for id := int64(1); id <= 5; id++ {
		if e := h.table.look(id); e.commits != 1 || e.Attempt != 0 {
			t.Errorf("row %d: %d commits, attempt %d", id, e.commits, e.Attempt)
		}
	}
}
