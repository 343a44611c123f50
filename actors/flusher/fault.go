package flusher

// Fault is what a failed flush means for the entries in it.
type Fault int

// The faults of a flush.
const (
	// Unknown: no idea; it may pass.
	Unknown Fault = iota
	// Content: the database refused what one of the entries contains.
	Content
	// Locked: somebody else holds a lock that one of the entries needs.
	Locked
	// Collided: a deadlock or a serialization failure; the same again is likely to pass.
	Collided
	// Away: the connection was lost or there is none to be had.
	Away
	// Ended: the flusher itself is being stopped.
	Ended
)

// step is what to do next with a part of a batch whose flush failed.
type step int

const (
	again  step = iota // at once
	wait               // again, after a pause
	probe              // find the rows that are locked and take them out
	halve              // flush the halves one by one
	aside              // hand the only entry to the side lane
	refuse             // answer the only entry with the error
	end                // answer ErrStopped
)

const (
	// patience is how often a part is flushed again as it is before it is cut.
	patience = 3
)

// decide says what to do with a part of size entries that failed for the n-th time, n from 1. A flush of one
// entry that is never written is refused only if its content is to blame; whatever may pass is tried again
// for as long as somebody waits.
func decide(f Fault, size, n int) step {
	switch f {
	case Ended:
		return end
	case Away:
		return wait
	case Content:
		if size == 1 {
			return refuse
		}
		return halve
	case Locked:
		if n == 1 {
			return probe
		}
	case Collided:
		if n < patience {
			return again
		}
	default:
		if n < patience {
			return wait
		}
	}
	if size == 1 {
		return aside
	}
	return halve
}
