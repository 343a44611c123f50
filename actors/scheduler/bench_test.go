package scheduler

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// endless is a Store that always has rows and costs nothing.
type endless struct {
	*table
	next atomic.Int64
	left atomic.Int64
}

func (e *endless) Claim(_ context.Context, r pg.ClaimRequest) ([]pg.Claimed, error) {
	n := min(int64(r.Limit), e.left.Load())
	e.left.Add(-n)
	rows := make([]pg.Claimed, n)
	for i := range rows {
		rows[i] = pg.Claimed{ID: e.next.Add(1), Machine: "quick", Version: 1, Step: fsm.JobStep, State: []byte(`{}`), Queue: "q"}
	}
	return rows, nil
}

// BenchmarkQueue is what one job costs the process between its claim and its commit: messages, a goroutine, the
// step, the encoding.
func BenchmarkQueue(b *testing.B) {
	b.ReportAllocs()
	runQueue(actors.NewSystem(slog.New(slog.DiscardHandler)), b.N)
}

// TestAllocationsOfAJob bounds what a job costs the heap between its claim and its commit. The bound is about twice what was
// counted. It is not parallel: the count is of the whole process.
func TestAllocationsOfAJob(t *testing.T) {
	const jobs, most = 5000, 50
	system := actors.NewSystem(slog.New(slog.DiscardHandler))
	n := testing.AllocsPerRun(2, func() { runQueue(system, jobs) }) / jobs
	t.Logf("%.1f allocations a job", n)
	if n > most {
		t.Errorf("a job takes %.1f allocations, expected at most %d", n, most)
	}
}

// runQueue runs a queue until it has done so many jobs.
func runQueue(system *actor.ActorSystem, jobs int) {
	var ran atomic.Int64
	spec := quick("quick", &ran).Spec()
	logger := slog.New(slog.DiscardHandler)
	done := make(chan struct{})
	var committed atomic.Int64
	flusher := system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		if m, ok := ctx.Message().(actors.Commit); ok {
			m.Reply <- actors.Committed{Verdict: pg.Verdict{ID: m.Outcome.ID, Status: pg.Done}}
			if committed.Add(1) == int64(jobs) {
				close(done)
			}
		}
	}))
	store := &endless{table: newTable()}
	store.left.Store(int64(jobs))
	queue := system.Root.Spawn(Props(Config{
		Queue: "q", Worker: identity, Store: store, Logger: logger, Concurrency: 100,
		Specs: func(string, int) *fsm.Spec { return spec }, Flushers: []*actor.PID{flusher},
	}))
	<-done
	_ = system.Root.StopFuture(queue).Wait()
	_ = system.Root.StopFuture(flusher).Wait()
}
