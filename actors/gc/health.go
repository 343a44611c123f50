package gc

import (
	"time"

	"github.com/gendurable/gendurable/pg"
)

// health decides when to vacuum. It knows no clock: it is told what was seen and how long a vacuum took, and
// answers with the pause until the next look.
type health struct {
	every    time.Duration
	maxDead  int64
	maxPause time.Duration

	before int64 // dead rows when the last vacuum began
	futile int   // vacuums in a row that left most of them
}

// rest is the pause after a vacuum, in terms of how long it ran.
const rest = 10

// wanted says whether to vacuum now.
func (h *health) wanted(s pg.VacuumStats) bool {
	h.before = s.Dead
	return s.Allowed && s.Dead >= h.maxDead
}

// vacuumed takes how long the vacuum ran and what it left, and returns the pause before the next look. A vacuum
// that left most of what it found, because an old snapshot may still see it or because it failed or another node was at it, doubles the pause.
func (h *health) vacuumed(took time.Duration, left pg.VacuumStats) time.Duration {
	if left.Dead > h.before/2 {
		h.futile++
	} else {
		h.futile = 0
	}
	pause := max(h.every, rest*took)
	for i := 0; i < h.futile && pause < h.maxPause; i++ {
		pause *= 2
	}
	return max(min(pause, h.maxPause), rest*took)
}
