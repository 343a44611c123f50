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
		Connections: 2, MaxPayload: -1, SweepBatch: -1, InlineLimit: -1, Pokes: "pigeon",
	})
	if !errors.Is(err, gendurable.ErrInvalid) {
		t.Fatalf("Start: %v, want ErrInvalid", err)
	}
	for _, want := range []string{
		`Name "a:b"`, `NodeName "x@y"`, "declared twice", "Machines[2] is nil", "no-steps", "nowhere", `"twice"`, "stripe",
		`"q@"`, "Concurrency -1", "none serves the queue", "Linger", "three heartbeats", "DrainTimeout", "PollBusy",
		"Connections 2", "MaxPayload", "SweepBatch", "InlineLimit", "pigeon",
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

func TestMistakesAtTheEdges(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for want, cfg := range map[string]gendurable.Config{
		"MaxPayload 33554432":       {MaxPayload: 32 << 20},                   // would be cut to 16 MiB
		"Connections 4294967296":    {Connections: 1 << 32},                   // would be one
		"does not fit Lease 1m0s":   {Heartbeat: 1 << 62, Lease: time.Minute}, // three of them overflow
		"Lease 2160000h0m0s":        {Lease: 90_000 * 24 * time.Hour},
		"does not fit Lease 1.999s": {Heartbeat: 667 * time.Millisecond, Lease: 1999 * time.Millisecond},
		"DrainTimeout 2160000h0m0s": {DrainTimeout: 90_000 * 24 * time.Hour},
		"at most 46 bytes":          {Pokes: gendurable.PokePostgres, Name: strings.Repeat("n", 47)}, // the channel would be cut
		"nothing listens":           {ListenURL: "postgres://host/db"},
		"not shown":                 {Pokes: gendurable.PokePostgres, ListenURL: "postgres://u:secret@h:port/"},
		"Flushers[0].MaxBytes -1":   {Flushers: []gendurable.Flusher{{MaxBytes: -1}}},
	} {
		_, err := gendurable.Start(t.Context(), pool, cfg)
		if !errors.Is(err, gendurable.ErrInvalid) {
			t.Errorf("%s: Start: %v", want, err)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
	for want, cfg := range map[string]gendurable.ClientConfig{
		"pigeon":           {Pokes: "pigeon"},
		`"local"`:          {Pokes: gendurable.PokeLocal}, // there is nobody here
		"at most 46 bytes": {Pokes: gendurable.PokePostgres, Name: strings.Repeat("n", 47)},
	} {
		if _, err := gendurable.NewClient(t.Context(), pool, cfg); !errors.Is(err, gendurable.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("NewClient: the error does not say %q: %v", want, err)
		}
	}
	if _, err := gendurable.Start(t.Context(), nil, gendurable.Config{}); !errors.Is(err, gendurable.ErrInvalid) {
		t.Errorf("Start without a pool: %v", err)
	}
	if _, err := gendurable.NewClient(t.Context(), nil, gendurable.ClientConfig{MaxPayload: -1}); !errors.Is(err, gendurable.ErrInvalid) ||
		!strings.Contains(err.Error(), "MaxPayload") {
		t.Errorf("NewClient: %v", err)
	}
}

func TestStartWarnsOfFlushersThatServeNobody(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	engine := start(t, database(t), gendurable.Config{
		Queues:   map[string]gendurable.Queue{"a": {}},
		Flushers: []gendurable.Flusher{{Queues: []string{"a", "typo"}}, {Queues: []string{"a"}}},
		Logger:   slog.New(slog.NewTextHandler(&log, nil)),
	})
	stop(t, engine)
	for _, want := range []string{"typo", "Flushers[1] has nothing to do"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no warning of %q:\n%s", want, log.String())
		}
	}
}

func TestAClientKeepsToItsQueues(t *testing.T) {
	t.Parallel()
	client, err := gendurable.NewClient(t.Context(), database(t), gendurable.ClientConfig{Queues: []string{"default"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Insert(t.Context(), double.New(number{}), fsm.Queue("typo")); !errors.Is(err, gendurable.ErrUnknownQueue) {
		t.Errorf("a queue that the client was not given: %v", err)
	}
	if _, err := client.Insert(t.Context(), double.New(number{})); err != nil {
		t.Errorf("a queue that it was given: %v", err)
	}
}

func TestNilAddressesAreRefused(t *testing.T) {
	t.Parallel()
	client, err := gendurable.NewClient(t.Context(), database(t), gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_, get := client.Get(t.Context(), nil)
	_, cancel := client.Cancel(t.Context(), nil, "")
	_, await := client.Await(t.Context(), nil)
	signal := client.Signal(t.Context(), nil, "x", nil)
	for what, err := range map[string]error{"Get": get, "Cancel": cancel, "Await": await, "Signal": signal} {
		if !errors.Is(err, gendurable.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
