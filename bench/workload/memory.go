package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gendurable/gendurable/bench/system"
)

var memory = []Workload{{
	Name: "memory", Group: "memory", Title: "Memory of a process: idle, and with 1,000 steps running", Unit: "KB/step", Per: "step", Lower: true,
	Fits: func(c system.Contender, s system.System) bool {
		_, ok := s.(system.Occupier)
		return ok && c.Role != system.Floor && c.Config != "default" // the configurations weigh the same
	},
	Run: runMemory,
}}

// runMemory weighs a process of its own, which holds nothing but one system.
func runMemory(ctx context.Context, t *Trial) (m Measure, err error) {
	steps := 1_000
	if t.Smoke {
		steps = 50
	}
	db, err := t.Server.Database(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, db.Drop(context.WithoutCancel(ctx))) }()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	child, err := spawn(ctx, childTask{Kind: "memory", URL: db.URL, Contender: t.Contender.Name(), Slots: steps + 10})
	if err != nil {
		return m, err
	}
	said, err := child.line()
	if err = errors.Join(err, child.end()); err != nil {
		return m, fmt.Errorf("weigh: %w", err)
	}
	var w weight
	if err := json.Unmarshal([]byte(said), &w); err != nil {
		return m, err
	}
	m.Units = steps
	m.Figure = float64(w.Busy-w.Idle) / float64(steps+10) / 1024
	m.More = map[string]float64{"idle MB": float64(w.Idle) / (1 << 20)}
	return m, nil
}
