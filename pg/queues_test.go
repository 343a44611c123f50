package pg

import (
	"context"
	"testing"
	"time"
)

func paused(t *testing.T, s *Store, db DB, queue string) time.Time {
	t.Helper()
	since, err := s.PauseQueue(testContext(t), db, queue)
	if err != nil {
		t.Fatal(err)
	}
	return since
}

func TestPausedQueueIsNotClaimed(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	id := put(t, s, 1)[0]
	put(t, s, 1, func(i *Insertion) { i.Queue = "other" })
	since := paused(t, s, host, "default")
	if again := paused(t, s, host, "default"); !again.Equal(since) {
		t.Errorf("paused again, it is paused since %v instead of %v", again, since)
	}
	if rows := claim(t, s, alice, 10); len(rows) != 0 {
		t.Errorf("of a paused queue %d rows were claimed", len(rows))
	}
	if rows, err := s.Claim(ctx, ClaimRequest{Queue: "other", Worker: alice, Lease: time.Minute, Limit: 10}); err != nil || len(rows) != 1 {
		t.Errorf("of another queue %d rows were claimed, %v", len(rows), err)
	}
	if list, err := s.PausedQueues(ctx, host); err != nil || len(list) != 1 || list[0].Queue != "default" || !list[0].PausedAt.Equal(since) {
		t.Errorf("the list of paused queues is %+v, %v", list, err)
	}
	for i, want := range []bool{true, false} {
		if was, err := s.ResumeQueue(ctx, host, "default"); err != nil || was != want {
			t.Errorf("resume %d says %v, %v", i, was, err)
		}
	}
	if rows := claim(t, s, alice, 10); len(rows) != 1 || rows[0].ID != id {
		t.Errorf("of a resumed queue came %+v", rows)
	}
	if list, err := s.PausedQueues(ctx, host); err != nil || len(list) != 0 {
		t.Errorf("after resuming, paused are %+v, %v", list, err)
	}
}

// TestPauseTakesEffectWithItsCommit: neither waits for the other, and a claim sees what was committed before it.
func TestPauseTakesEffectWithItsCommit(t *testing.T) {
	t.Parallel()
	s, _ := openWithHost(t, Options{})
	put(t, s, 3)
	got := map[string]int{}
	take := func(name string) move {
		return func(ctx context.Context, s *Store, _ DB) error {
			rows, err := s.Claim(ctx, ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: 1})
			got[name] = len(rows)
			return err
		}
	}
	stop := func(ctx context.Context, s *Store, db DB) error {
		_, err := s.PauseQueue(ctx, db, "default")
		return err
	}
	resume := func(ctx context.Context, s *Store, db DB) error {
		_, err := s.ResumeQueue(ctx, db, "default")
		return err
	}
	interleave(t, s, map[string]move{"before": take("before"), "after": take("after"), "still": take("still"), "then": take("then"),
		"pause": stop, "resume": resume}, `
		operator begin
		operator pause
		worker   before
		other    pause  blocks
		operator commit
		other    resumes
		worker   after
		operator begin
		operator resume
		worker   still
		operator commit
		worker   then
	`)
	if got["before"] != 1 || got["after"] != 0 || got["still"] != 0 || got["then"] != 1 {
		t.Errorf("the claims took %v rows, expected one before the pause was committed, none while it was, one afterwards", got)
	}
}
