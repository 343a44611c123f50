package gendurable_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// TestWorkForLaterNeedsNoPoll: a queue wakes up for work that it knows to come: of delayed children and steps of its own process,
// of one insert of many, and of what was there before it started.
func TestWorkForLaterNeedsNoPoll(t *testing.T) {
	t.Parallel()
	pool := database(t)
	const soon = 300 * time.Millisecond
	fan := fsm.New[number]("fan").
		Step("split", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			out := fsm.ScheduleChildren(double.New(number{1}, fsm.ScheduleIn(soon)), double.New(number{2}, fsm.ScheduleIn(3*soon))).Then("end")
			if c.State.N == 0 {
				return out, nil
			}
			return gendurable.InTx(out, func(context.Context, pgx.Tx) error { return nil }), nil
		}).
		Step("end", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.Done(len(c.Children)), nil
		})
	sleep := fsm.New[number]("sleep").
		Step("nap", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
			return gendurable.InTx(fsm.Next("end").After(soon), func(context.Context, pgx.Tx) error { return nil }), nil
		}).
		Step("end", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) { return fsm.Done(0), nil })
	later := []fsm.Instance{double.New(number{1}, fsm.ScheduleIn(soon)), double.New(number{2}, fsm.ScheduleIn(3*soon)),
		double.New(number{3}, fsm.ScheduleIn(2*soon), fsm.Priority(7))}
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{Machines: []fsm.Definition{double}})
	if err != nil {
		t.Fatal(err)
	}
	before, err := client.InsertMany(t.Context(), later)
	if err != nil {
		t.Fatal(err)
	}
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{double, fan, sleep}, PollBusy: time.Hour, PollIdle: time.Hour})
	for _, r := range before {
		if s := await(t, engine, r.ID); !s.Done() {
			t.Errorf("from before the start: %+v", s)
		}
	}
	for _, inst := range []fsm.Instance{fan.New(number{0}), fan.New(number{1}), sleep.New(number{})} {
		if s := await(t, engine, insert(t, engine, inst)); !s.Done() {
			t.Errorf("it settled as %+v", s)
		}
	}
	after, err := engine.InsertMany(t.Context(), later)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range after {
		if s := await(t, engine, r.ID); !s.Done() {
			t.Errorf("of many: %+v", s)
		}
	}
}
