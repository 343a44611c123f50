package gendurable_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

func TestEveryMistakeIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	step := func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) { return fsm.Done(nil), nil }
	_, err := gendurable.Start(t.Context(), database(t), gendurable.Config{
		Name:     "a:b",
		NodeName: "x@y",
		Machines: []fsm.Definition{
			double, double, nil,
			fsm.New[number]("no-steps"),
			fsm.New[number]("bad-target").Step("a", step, fsm.To("nowhere")),
			fsm.New[number]("twice").Step("a", step).Step("a", step),
			fsm.New[number]("limited", fsm.RateLimit("stripe")).Step("a", step),
		},
		Queues:   map[string]gendurable.Queue{"q@": {}, "default": {Concurrency: -1}},
		Flushers: []gendurable.Flusher{{Queues: []string{"other"}, Linger: -1}},
		Lease:    10 * time.Second, Heartbeat: 9 * time.Second,
		DrainTimeout: -1, PollBusy: time.Minute, PollIdle: time.Second,
		Connections: 2, MaxPayload: -1, SweepBatch: -1, Pokes: "pigeon",
	})
	if !errors.Is(err, gendurable.ErrInvalid) {
		t.Fatalf("Start: %v, want ErrInvalid", err)
	}
	for _, want := range []string{
		`Name "a:b"`, `NodeName "x@y"`, "declared twice", "Machines[2] is nil", "no-steps", "nowhere", `"twice"`, "stripe",
		`"q@"`, "Concurrency -1", "none serves the queue", "Linger", "three heartbeats", "DrainTimeout", "PollBusy",
		"Connections 2", "MaxPayload", "SweepBatch", "pigeon",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %s:\n%v", want, err)
		}
	}
}

func TestStartWithoutTables(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t)
	if _, err := gendurable.Start(t.Context(), pool, gendurable.Config{}); !errors.Is(err, gendurable.ErrNotMigrated) {
		t.Errorf("Start: %v, want ErrNotMigrated", err)
	}
	if _, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{}); !errors.Is(err, gendurable.ErrNotMigrated) {
		t.Errorf("NewClient: %v, want ErrNotMigrated", err)
	}
}

func TestStartWarnsOfQueuesThatNobodyHereRuns(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	elsewhere := fsm.NewJob("elsewhere", func(context.Context, *fsm.JobCall[number]) (int, error) { return 0, nil }, fsm.Queue("far"))
	engine := start(t, database(t), gendurable.Config{
		Machines: []fsm.Definition{elsewhere}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	stop(t, engine)
	if !strings.Contains(log.String(), "far") {
		t.Errorf("no warning of the queue that is not run here:\n%s", log.String())
	}
}

func TestUnknownMachinesAndQueuesAreRefused(t *testing.T) {
	t.Parallel()
	stranger := fsm.NewJob("stranger", func(context.Context, *fsm.JobCall[number]) (int, error) { return 0, nil })
	engine := start(t, database(t), gendurable.Config{Machines: []fsm.Definition{double}, InsertQueues: []string{"elsewhere"}})
	if _, err := engine.Insert(t.Context(), stranger.New(number{})); !errors.Is(err, gendurable.ErrUnknownMachine) {
		t.Errorf("unknown machine: %v", err)
	}
	if _, err := engine.Insert(t.Context(), double.New(number{}), fsm.Queue("typo")); !errors.Is(err, gendurable.ErrUnknownQueue) {
		t.Errorf("unknown queue: %v", err)
	}
	insert(t, engine, double.New(number{}), fsm.Queue("elsewhere"))
}
