package gendurable_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

func TestCountsAndLists(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	m := g.machine("m", fsm.Queue("busy"))
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m, double}, Queues: map[string]gendurable.Queue{"busy": {Concurrency: 2}}, InsertQueues: []string{"idle"}})
	insert(t, engine, m.New(number{}))
	<-g.entered
	_, err := pool.Exec(t.Context(), `
		INSERT INTO gen_durable (fsm, step, queue, status, priority, eligible_at)
		SELECT 'double', 'run', 'default', 'runnable', i % 7, now() + CASE WHEN i % 4 = 0 THEN interval '1 hour' ELSE -interval '1 minute' * (1 + i % 3) END
		  FROM generate_series(1, 40) i;
		INSERT INTO gen_durable (fsm, step, queue, status) SELECT 'x', 'a', 'parked', s::durable_status
		  FROM unnest('{awaiting_signal,awaiting_signal,awaiting_children,failed,failed,failed,done}'::text[]) s;
		INSERT INTO gen_durable (fsm, step, queue, status) SELECT 'y', 'a', 'failing', 'failed' FROM generate_series(1, 10050) s`)
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Pause(t.Context(), "paused"); err != nil {
		t.Fatal(err)
	}
	states, err := engine.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	by := map[string]gendurable.QueueState{}
	for _, s := range states {
		names = append(names, s.Queue)
		by[s.Queue] = s
	}
	if !slices.Equal(names, []string{"busy", "default", "failing", "idle", "parked", "paused"}) {
		t.Errorf("the queues are %v", names)
	}
	d := by["default"]
	if age := time.Since(d.OldestReady); d.Ready != 30 || d.Scheduled != 10 || age < 2*time.Minute || age > time.Hour {
		t.Errorf("%+v", d)
	}
	if s := by["busy"]; s.Executing != 1 || s.Ready != 0 || !s.OldestReady.IsZero() {
		t.Errorf("%+v", s)
	}
	if s := by["parked"]; s.AwaitingSignal != 2 || s.AwaitingChildren != 1 || s.Failed != 3 || !s.PausedSince.IsZero() {
		t.Errorf("%+v", s)
	}
	if s := by["failing"]; s.Failed != gendurable.CountLimit {
		t.Errorf("%+v", s)
	}
	if s, err := engine.QueueStats(t.Context(), "paused"); err != nil || s.PausedSince.IsZero() || s.Ready != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	close(g.open)

	// A page of rare ones is found behind more rows than one call looks at.
	o := gendurable.ListOptions{Queue: "parked", Status: fsm.StatusFailed, Limit: 2}
	var found []gendurable.ListedInstance
	for calls := 1; ; calls++ {
		page, err := engine.List(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, page.Instances...)
		if page.Next == 0 {
			break
		}
		if o.Before = page.Next; calls > 5 {
			t.Fatal("the list does not end")
		}
	}
	if len(found) != 3 || found[0].ID < found[1].ID || found[1].ID < found[2].ID || found[0].Queue != "parked" || found[0].Machine != "x" {
		t.Errorf("found %+v", found)
	}
	for _, o := range []gendurable.ListOptions{{Limit: -1}, {Limit: 1001}, {Before: -1}, {Status: "odd"}} {
		if _, err := engine.List(t.Context(), o); !errors.Is(err, gendurable.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	empty, err := engine.List(context.Background(), gendurable.ListOptions{Machine: "none", Before: 5})
	if err != nil || len(empty.Instances) != 0 || empty.Next != 0 {
		t.Errorf("%+v, %v", empty, err)
	}
}
