package scheduler

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/pg"
)

// locked is a store whose rows are all locked by one host transaction.
type locked struct {
	Store
	waiting atomic.Int64
	entered chan struct{}
	pass    chan struct{}
}

func (l *locked) ExtendOne(context.Context, string, time.Duration, int64) (pg.Beat, error) {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	l.entered <- struct{}{}
	<-l.pass
	return pg.Beat{State: pg.Extended}, nil
}

// Each call that waits for a lock holds a connection.
func TestLockedRowsAreWaitedForOneByOne(t *testing.T) {
	t.Parallel()
	const rows = 50
	store := &locked{entered: make(chan struct{}, rows), pass: make(chan struct{})}
	cfg := &Config{Store: store, Logger: slog.New(slog.DiscardHandler)}
	cfg.fill()
	system := actors.NewSystem(cfg.Logger)
	answered := make(chan int64, rows)
	self := system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		if m, ok := ctx.Message().(answer); ok {
			answered <- m.event.(core.ExtendResult).Beat.ID
		}
	}))
	defer func() { _ = system.Root.StopFuture(self).Wait() }()
	s := &scheduler{cfg: cfg, life: newLife(nil), self: self, root: system.Root}
	defer s.life.end()
	fx := &core.Effects{}
	for id := range rows {
		fx.Extend = append(fx.Extend, int64(id))
	}
	s.call(fx)
	most := int64(0)
	for range rows {
		<-store.entered
		for range rows { // let those go on that can
			runtime.Gosched()
		}
		most = max(most, store.waiting.Load())
		store.pass <- struct{}{}
	}
	seen := map[int64]bool{}
	for range rows {
		seen[<-answered] = true
	}
	if most > 1 || len(seen) != rows {
		t.Errorf("%d waited at once; %d of %d rows were answered", most, len(seen), rows)
	}
}
