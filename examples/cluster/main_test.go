package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gendurable/gendurable/internal/devpg"
)

func TestMain(m *testing.M) {
	if number := os.Getenv(envNode); number != "" {
		exit(runNode(number))
	}
	os.Exit(m.Run())
}

// TestLanesMoveAwayFromADeadNode watches the example until the node that it kills has lost its lanes to the others.
func TestLanesMoveAwayFromADeadNode(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const lanes = 6
	moved := false
	var out bytes.Buffer
	err := conduct(ctx, devpg.Database(t), options{
		nodes: 3, lanes: lanes, ttl: 2 * time.Second, kill: 5 * time.Second, restart: time.Hour, out: &out,
		saw: func(nodes map[int][]string) {
			served := map[string]int{}
			for _, names := range nodes {
				for _, lane := range names {
					served[lane]++
				}
			}
			if moved = len(nodes) == 2 && len(served) == lanes; moved {
				cancel()
			}
		},
	})
	if err != nil && ctx.Err() == nil || !moved {
		t.Errorf("the lanes of the dead node did not move (%v):\n%s", err, out.String())
	}
	for _, want := range []string{"kill -9 of node 2", "steps/s", "dead"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q was not shown:\n%s", want, out.String())
		}
	}
}
