//go:build unix

package bed

import (
	"context"
	"testing"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/internal/devpg"
	"github.com/gendurable/gendurable/pg"
)

// TestPokesReachTheLanes: an insert-only node inserts, at its gateway, what a lane of another node runs. Nobody polls, so an
// actor message has brought it.
func TestPokesReachTheLanes(t *testing.T) {
	t.Parallel()
	f := emptyFleet(t, 1)
	worker, thin := f.add("worker"), f.add("thin")
	worker.config.Deaf = true
	thin.config.Role = cluster.RoleInsertOnly
	f.start(worker)
	f.start(thin)
	f.converged("a worker and a thin node")
	client, err := cluster.NewClient(cluster.ClientConfig{Gateways: []string{thin.config.Advertise}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 3 {
		id, err := client.Insert(ctx, chain(nil, 0).New(job{}))
		if err != nil {
			t.Fatal(err)
		}
		// The thin node may learn of the lane a beat later than the database; then this work waits for the next poke.
		eventually(t, "the work is done", func() bool {
			if _, err := client.Insert(ctx, chain(nil, 0).New(job{})); err != nil {
				t.Fatal(err)
			}
			return f.count(`SELECT count(*) FROM gen_durable WHERE id = $1 AND status = 'done'`, int64(id)) == 1
		})
	}
}

// TestOperatorsReachOtherNodes: what is cancelled or paused at one node is heard at once by the other that runs it. That one
// has no heartbeat within the life of the test, so an actor message has told it.
func TestOperatorsReachOtherNodes(t *testing.T) {
	t.Parallel()
	f := emptyFleet(t, 1)
	worker, thin := f.add("worker"), f.add("thin")
	worker.config.Deaf = true
	thin.config.Role = cluster.RoleInsertOnly
	f.start(worker)
	f.start(thin)
	f.converged("a worker and a thin node")
	m := endless(nil, 0)
	insert := func(j job) int64 {
		id, err := f.client.Insert(t.Context(), m.New(j))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the step runs", func() bool {
			f.order(worker, "poke", "q")
			return f.count(`SELECT count(*) FROM ledger WHERE instance = $1 AND event = 'started'`, int64(id)) == 1
		})
		return int64(id)
	}
	// The thin node may learn of the worker a beat later than the database, so it is told again and again.
	waits := insert(job{Key: "waits"})
	eventually(t, "the cancelled step's context has ended, and the instance with it", func() bool {
		f.order(thin, "cancel", waits)
		return f.count(`SELECT count(*) FROM ledger WHERE instance = $1 AND event = 'ended'`, waits) == 1 &&
			f.count(`SELECT count(*) FROM gen_durable WHERE id = $1 AND status = 'failed' AND last_error = 'cancelled: enough'`, waits) == 1
	})
	turns := insert(job{})
	eventually(t, "the chain of a paused queue has returned to it", func() bool {
		f.order(thin, "pause", "q")
		return f.count(`SELECT count(*) FROM gen_durable WHERE id = $1 AND status = 'runnable' AND step = 'turn'`, turns) == 1
	})
}

func emptyFleet(t *testing.T, lanes int) *fleet {
	t.Helper()
	f := &fleet{t: t, pool: devpg.Database(t, pg.Migrate), lanes: lanes, ttl: ttl}
	if _, err := f.pool.Exec(t.Context(), ledgerSchema); err != nil {
		t.Fatal(err)
	}
	var err error
	if f.client, err = gendurable.NewClient(t.Context(), f.pool, gendurable.ClientConfig{}); err != nil {
		t.Fatal(err)
	}
	return f
}
