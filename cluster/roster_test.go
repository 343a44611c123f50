package cluster

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// beats is a store of one member, whose answers the test gives.
type beats struct {
	Store
	answers []answer
	got     []pg.MemberBeat
}

// answer is what the database made of a beat, and how that came back.
type answer func(ctx context.Context, b pg.MemberBeat) ([]pg.Member, error)

func (s *beats) BeatMember(ctx context.Context, _ pg.Node, b pg.MemberBeat) ([]pg.Member, error) {
	s.got = append(s.got, b)
	answer := s.answers[0]
	s.answers = s.answers[1:]
	return answer(ctx, b)
}

func (s *beats) BeatNode(context.Context, pg.Node) (string, error) {
	return "", nil // the row is there again
}

func stays(_ context.Context, b pg.MemberBeat) ([]pg.Member, error) {
	return []pg.Member{{Own: true, ID: b.ID}}, nil
}

func takesNext(_ context.Context, b pg.MemberBeat) ([]pg.Member, error) {
	return []pg.Member{{Own: true, ID: b.Next}}, nil
}

func swept(context.Context, pg.MemberBeat) ([]pg.Member, error) { return nil, pg.ErrNoNodeRow }

func lost(context.Context, pg.MemberBeat) ([]pg.Member, error) {
	return nil, errors.New("the answer was lost")
}

func tooLate(ctx context.Context, b pg.MemberBeat) ([]pg.Member, error) {
	<-ctx.Done()
	return []pg.Member{{Own: true, ID: b.Next}}, nil
}

// TestMemberIDs: under which id a node beats, after what may happen to a beat. Others block an id for ever once they have missed
// it, so a node that goes back to one that was given up is never let in again.
func TestMemberIDs(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		answers []answer
		ids     [][2]int // of each beat: its id and the next one, as how many after the first
		heard   int      // how often who lives was passed on
	}{
		"all well":                      {[]answer{stays, stays}, [][2]int{{0, 1}, {0, 1}}, 2},
		"silent for too long":           {[]answer{stays, takesNext, stays}, [][2]int{{0, 1}, {0, 1}, {1, 2}}, 3},
		"twice":                         {[]answer{takesNext, takesNext, stays}, [][2]int{{0, 1}, {1, 2}, {2, 3}}, 3},
		"the answer was lost":           {[]answer{lost, stays}, [][2]int{{0, 1}, {0, 1}}, 1},
		"and the next id was taken":     {[]answer{lost, takesNext, stays}, [][2]int{{0, 1}, {0, 1}, {1, 2}}, 2},
		"the answer was late":           {[]answer{tooLate, takesNext, stays}, [][2]int{{0, 1}, {0, 1}, {1, 2}}, 2},
		"the row was swept":             {[]answer{swept, stays, stays}, [][2]int{{0, 1}, {1, 2}, {1, 2}}, 2},
		"swept, and the answer is lost": {[]answer{swept, lost, stays}, [][2]int{{0, 1}, {1, 2}, {1, 2}}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			store := &beats{answers: test.answers}
			heard := 0
			ttl := time.Hour // no beat takes longer than that, but
			if what == "the answer was late" {
				ttl = 100 * time.Millisecond
			}
			r := newRoster(&PlacerConfig{Logger: slog.New(slog.DiscardHandler), Store: store, TTL: ttl, outage: new(actors.Outage),
				Node: pg.Node{Incarnation: "i", Address: "127.0.0.1:1"}}, func([]pg.Member) { heard++ })
			for len(store.answers) > 0 {
				r.once(t.Context())
			}
			name := func(n int) string { return "i-" + string(rune('1'+n)) }
			for i, want := range test.ids {
				if got := store.got[i]; got.ID != name(want[0]) || got.Next != name(want[1]) {
					t.Errorf("beat %d of %d is that of %s, next %s; want %s and %s", i, len(store.got), got.ID, got.Next, name(want[0]), name(want[1]))
				}
			}
			if heard != test.heard {
				t.Errorf("who lives was passed on %d times, want %d", heard, test.heard)
			}
		})
	}
}
