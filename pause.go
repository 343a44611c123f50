package gendurable

import (
	"context"
	"fmt"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Pause stops the queue, on every node and until Resume, across restarts: from when it returns no claim takes a row of it.
// Steps that run finish and commit; rows that a node has claimed ahead go back, and inline chains return to the queue, as
// soon as their node learns of it: this process and, with PokePostgres or PokeCluster, the others at once, else with their next
// heartbeat. A queue that is paused already stays so; the queue need not be known here. Everything else goes on: inserts,
// signals, timeouts, cancels.
//
// Nodes of the original engine on the same tables do not know of it.
func (c *Client) Pause(ctx context.Context, queue string) error {
	if err := checkQueue(queue); err != nil {
		return err
	}
	if _, err := c.store.PauseQueue(ctx, c.pool, queue); err != nil {
		return fmt.Errorf("gendurable: pause queue %q: %w", queue, err)
	}
	c.operator(pg.Notice{Kind: pg.NoticePause, Queue: queue}, "")
	return nil
}

// Resume ends a pause, on every node. A queue that is not paused stays as it is.
func (c *Client) Resume(ctx context.Context, queue string) error {
	if err := checkQueue(queue); err != nil {
		return err
	}
	was, err := c.store.ResumeQueue(ctx, c.pool, queue)
	if err != nil {
		return fmt.Errorf("gendurable: resume queue %q: %w", queue, err)
	}
	if was {
		c.announce([]string{queue}, 0)
	}
	return nil
}

// PausedQueue is a queue that is paused.
type PausedQueue struct {
	Queue string
	Since time.Time
}

// PausedQueues lists the queues that are paused, by name.
func (c *Client) PausedQueues(ctx context.Context) ([]PausedQueue, error) {
	rows, err := c.store.PausedQueues(ctx, c.pool)
	if err != nil {
		return nil, fmt.Errorf("gendurable: list the paused queues: %w", err)
	}
	paused := make([]PausedQueue, len(rows))
	for i, r := range rows {
		paused[i] = PausedQueue{Queue: r.Queue, Since: r.PausedAt}
	}
	return paused, nil
}

func checkQueue(queue string) error {
	p := &problems{}
	p.name("queue", queue, "@")
	if len(p.errs) > 0 {
		return p.errs[0]
	}
	return nil
}

// operator tells those who may hold rows what an operator did: this engine's schedulers, and other processes as
// Config.Pokes says.
func (t *tree) operator(n pg.Notice, reason string) {
	t.noticed(n, reason)
	t.system.Root.Send(t.pid(actors.NamePoke), actors.Tell{Notice: n})
}

// noticed passes a notice on to its queue, if that is here.
func (t *tree) noticed(n pg.Notice, reason string) {
	queue := t.pid(actors.NameQueue(n.Queue)) // which hands it on, to each of its lanes
	switch n.Kind {
	case pg.NoticeCancel:
		t.system.Root.Send(queue, actors.CancelRequested{ID: n.ID, Claim: n.Claim, Reason: reason})
	case pg.NoticePause:
		t.system.Root.Send(queue, actors.QueuePaused{Queue: n.Queue})
	}
}

// paused tells the schedulers here whose queues are paused.
func (t *tree) paused(queues []string) {
	for _, q := range queues {
		if _, here := t.queueCounters[q]; here {
			t.noticed(pg.Notice{Kind: pg.NoticePause, Queue: q}, "")
		}
	}
}
