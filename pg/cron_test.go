package pg

import (
	"context"
	"testing"
	"time"
)

func TestCronIsClaimedOnce(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	names := []string{"a", "b"}
	first, err := s.EnterCron(ctx, names)
	if err != nil || len(first.Last) != 2 || !first.Last["a"].Equal(first.Now) {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := s.EnterCron(ctx, names); err != nil || !again.Last["b"].Equal(first.Last["b"]) {
		t.Fatalf("%+v, %v", again, err)
	}
	exec(t, s, `UPDATE gen_durable_cron SET last = now() - interval '1 hour'`)
	occurrence := first.Now.Add(-time.Minute)
	var fired []CronFired
	fire := func(ctx context.Context, s *Store, _ DB) error {
		f, err := s.FireCron(ctx, "a", occurrence, keyed("k"))
		fired = append(fired, f)
		return err
	}
	moves := map[string]move{
		"fire": fire,
		"hold": func(ctx context.Context, _ *Store, db DB) error {
			_, err := db.Exec(ctx, `SELECT FROM gen_durable_cron WHERE name = 'a' FOR UPDATE`)
			return err
		},
	}
	interleave(t, s, moves, `
		x    begin
		x    hold
		one  fire blocks
		x    commit
		one  resumes
		two  fire
	`)
	if len(fired) != 2 || !fired[0].Claimed || fired[0].ID == 0 || fired[1].Claimed || fired[1].ID != 0 {
		t.Errorf("the occurrence was claimed so: %+v", fired)
	}
	occurrence = first.Now.Add(-time.Second)
	if f, err := s.FireCron(ctx, "a", occurrence, keyed("k")); err != nil || !f.Claimed || f.ID != 0 {
		t.Errorf("with its key occupied: %+v, %v", f, err)
	}
	if f, err := s.FireCron(ctx, "b", first.Now.Add(time.Hour), keyed("x")); err != nil || f.Claimed {
		t.Errorf("one in the future: %+v, %v", f, err)
	}
	if err := s.PassCron(ctx, "b", occurrence); err != nil {
		t.Fatal(err)
	}
	if f, err := s.FireCron(ctx, "b", occurrence, keyed("x")); err != nil || f.Claimed {
		t.Errorf("one that was passed over: %+v, %v", f, err)
	}
	if n := value[int](t, s, `SELECT count(*) FROM gen_durable`); n != 1 {
		t.Errorf("there are %d instances", n)
	}
}
