package flusher

import (
	"context"
	"log/slog"
	"testing"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

func BenchmarkCommit(b *testing.B) {
	b.ReportAllocs()
	commit, end := committing()
	defer end()
	for b.Loop() {
		commit()
	}
}

// TestAllocationsOfACommit bounds what an outcome costs the heap on its way through the flusher. The bound is about twice what
// was counted. It is not parallel: the count is of the whole process.
func TestAllocationsOfACommit(t *testing.T) {
	const most = 6
	commit, end := committing()
	defer end()
	n := testing.AllocsPerRun(20, commit) / together
	t.Logf("%.1f allocations an outcome", n)
	if n > most {
		t.Errorf("an outcome takes %.1f allocations, expected at most %d", n, most)
	}
}

// together is how many outcomes committing commits at once.
const together = 256

// committing starts a flusher whose database costs nothing.
func committing() (commit, end func()) {
	log := slog.New(slog.DiscardHandler)
	system := actors.NewSystem(log)
	db := instant{}
	pid := system.Root.Spawn(Props(Config{Logger: log, Main: db, Side: db, Rows: newDatabase()}))
	end = func() { _ = system.Root.StopFuture(pid).Wait() }
	replies := make([]chan actors.Committed, together)
	for i := range replies {
		replies[i] = make(chan actors.Committed, 1)
	}
	commit = func() {
		for i, r := range replies {
			system.Root.Send(pid, actors.Commit{Outcome: pg.Outcome{ID: int64(i)}, Reply: r})
		}
		for _, r := range replies {
			<-r
		}
	}
	return commit, end
}

// instant commits everything.
type instant struct{}

func (instant) Flush(_ context.Context, outcomes []pg.Outcome) (pg.Flushed, error) {
	return pg.Flushed{Verdicts: make([]pg.Verdict, len(outcomes))}, nil
}
