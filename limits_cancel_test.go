package gendurable_test

import (
	"context"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
)

// TestCancelOfADeniedRow: an instance whose limit has nothing left is cancelled at once. Also while the limiter is being asked, when
// it counts as executing and only a request can be left: it ends when it comes back, behind many that wait for the same limit,
// not when the limit has something left or a poll is due.
func TestCancelOfADeniedRow(t *testing.T) {
	t.Parallel()
	never := fsm.NewJob("never", func(context.Context, *fsm.JobCall[number]) (int, error) { return 0, nil })
	for _, c := range []struct{ name, key, rate string }{
		{"a rate", "NULL", "'r:x'"}, {"a gate", "'g:x'", "NULL"}, {"both", "'g:x'", "'r:x'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			memory := newInMemory()
			memory.spent["r"] = true
			memory.holders["g:x"] = map[limiter.Slot]bool{{ID: -1, Claim: 1, Key: "g:x"}: true}
			memory.asked, memory.answer = make(chan struct{}), make(chan struct{})
			stopped := make(chan struct{})
			t.Cleanup(func() { close(stopped) }) // after the engine
			engine := start(t, pool, pollless(gendurable.Config{
				Machines: []fsm.Definition{never}, Limiter: memory, Gates: map[string]gendurable.Gate{"g": {Limit: 1}},
				RateLimits: map[string]gendurable.RateLimit{"r": {Allowed: 1, Per: time.Hour}},
			}))
			var opts []fsm.InsertOption
			if c.key != "NULL" {
				opts = append(opts, fsm.ConcurrencyKey("g:x"))
			}
			if c.rate != "NULL" {
				opts = append(opts, fsm.RateLimit("r:x"))
			}
			ends := func(id gendurable.ID) {
				t.Helper()
				if s := await(t, engine, id, gendurable.UntilTerminal()); s.Error != "cancelled: enough" {
					t.Errorf("it settled as %+v", s)
				}
			}
			id := insert(t, engine, never.New(number{1}), opts...)
			select {
			case <-memory.asked:
			case <-time.After(patience):
				t.Fatal("the limiter is not asked")
			}
			backlog(t, pool, never.New(number{}), 3000, c.key, c.rate) // all of them before it
			// It ends at once if the backlog took so long that the question was given up.
			if got, err := engine.Cancel(t.Context(), id, "enough"); err != nil || got == gendurable.CancelTooLate {
				t.Errorf("the cancel while the limiter is asked came to %v, %v", got, err)
			}
			go memory.answers(stopped)
			ends(id)
			// One that comes now is left where it is, or asks for a gate's slot just then.
			id = insert(t, engine, never.New(number{2}), opts...)
			if got, err := engine.Cancel(t.Context(), id, "enough"); err != nil || got == gendurable.CancelTooLate {
				t.Errorf("the second cancel came to %v, %v", got, err)
			}
			ends(id)
			if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'failed'`); n != 2 {
				t.Errorf("%d instances have ended, expected two", n)
			}
		})
	}
}

// answers lets it answer whoever waits, and all who ask from now on.
func (m *inMemory) answers(until <-chan struct{}) {
	for {
		select {
		case <-m.asked:
		case m.answer <- struct{}{}:
		case <-until:
			return
		}
	}
}
