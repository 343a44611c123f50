package actors

import "time"

// Rescan decides when a sweep that goes on where the last one ended begins at the start again. From the start it finds what it
// had to leave, but walks over all dead rows as well that an open transaction keeps, so it takes at most a tenth of the time. The
// zero value says at once. Not safe for concurrent use.
type Rescan struct{ at time.Time }

// Due reports whether a sweep that begins now begins at the start.
func (r *Rescan) Due(now time.Time) bool { return !r.at.After(now) }

// Took notes that a sweep, or its first statement, began at the start and ended now.
func (r *Rescan) Took(d time.Duration, now time.Time) { r.at = now.Add(9 * d) }
