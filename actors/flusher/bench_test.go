package flusher

import (
	"context"
	"log/slog"
	"testing"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

func BenchmarkCommit(b *testing.B) {
	log := slog.New(slog.DiscardHandler)
	system := actors.NewSystem(log)
	db := instant{}
	pid := system.Root.Spawn(Props(Config{Logger: log, Main: db, Side: db, Rows: newDatabase()}))
	defer func() { _ = system.Root.StopFuture(pid).Wait() }()
	replies := make([]chan actors.Committed, 256)
	for i := range replies {
		replies[i] = make(chan actors.Committed, 1)
	}
	b.ReportAllocs()
	for b.Loop() {
		for i, r := range replies {
			system.Root.Send(pid, actors.Commit{Outcome: pg.Outcome{ID: int64(i)}, Reply: r})
		}
		for _, r := range replies {
			<-r
		}
	}
}

// instant commits everything.
type instant struct{}

func (instant) Flush(_ context.Context, outcomes []pg.Outcome) (pg.Flushed, error) {
	return pg.Flushed{Verdicts: make([]pg.Verdict, len(outcomes))}, nil
}
