package core

import "time"

const (
	rateWindow = 10 * time.Millisecond // the least time over which completions are counted
	// soon is the longest that an empty slot waits for company before a claim is made for it alone.
	soon = 2 * time.Millisecond
	// Rows are claimed ahead for a horizon of a few claim round trips, so that slots do not run dry while a
	// claim is on its way and the claims under load are large. It is also the time that a row waits buffered.
	minHorizon = 20 * time.Millisecond
	maxHorizon = 100 * time.Millisecond
)

// demand estimates how fast slots come free, and from that how many rows to claim and when.
type demand struct {
	lastEnd     time.Time // of any step
	windowStart time.Time
	windowEnds  int
	perSecond   float64       // smoothed completions
	stepTook    time.Duration // smoothed time that a row holds its slot
	claimTook   time.Duration // smoothed round trip of a claim with rows
}

// began is told when work starts with nothing running. A pause says nothing of the rate: it opens a new window.
func (d *demand) began(now time.Time) {
	if now.Sub(d.lastEnd) > rateWindow {
		d.windowStart, d.windowEnds = now, 0
	}
}

func (d *demand) ended(took time.Duration, now time.Time) {
	d.lastEnd = now
	d.stepTook = smooth(d.stepTook, took)
	d.windowEnds++
	span := now.Sub(d.windowStart)
	if span < rateWindow {
		return
	}
	rate := float64(d.windowEnds) / span.Seconds()
	if d.perSecond == 0 || span > time.Second {
		d.perSecond = rate
	} else {
		d.perSecond += (rate - d.perSecond) / 2
	}
	d.windowStart, d.windowEnds = now, 0
}

func (d *demand) claimed(took time.Duration) { d.claimTook = smooth(d.claimTook, took) }

func smooth(mean, sample time.Duration) time.Duration {
	if mean == 0 {
		return sample
	}
	return mean + (sample-mean)/4
}

// rate is completions per second as of now: silence lowers it.
func (d *demand) rate(now time.Time) float64 {
	if silence := now.Sub(d.lastEnd); silence > 5*rateWindow {
		return min(d.perSecond, 1/silence.Seconds())
	}
	return d.perSecond
}

// prefetch is how many rows to hold ahead of free slots. A few slow steps that happen to end together look like
// a high rate; how long steps take says how many can really end in the time.
func (d *demand) prefetch(now time.Time, slots, most int) int {
	horizon := min(max(4*d.claimTook, minHorizon), maxHorizon)
	n := d.rate(now) * horizon.Seconds()
	if d.stepTook > 0 {
		n = min(n, float64(slots)*float64(horizon)/float64(d.stepTook))
	}
	return min(int(n), most)
}

// patience is how much longer an empty slot may wait for others to come free; 0 when none is expected soon.
func (d *demand) patience(now time.Time) time.Duration {
	if d.rate(now)*soon.Seconds() < 1 {
		return 0
	}
	return max(0, d.lastEnd.Add(soon).Sub(now))
}

// wanted is how many rows a claim made now should ask for. It is 0 when there is no room, or when it is better
// to wait: then until is when to look again (zero = at the next event).
func (c *Core) wanted(now time.Time) (n int, until time.Time) {
	free := c.free()
	ahead := c.demand.prefetch(now, c.cfg.Concurrency, c.cfg.MaxPrefetch)
	room := min(free+ahead-c.Buffered(), c.cfg.MaxClaim)
	if room <= 0 {
		return 0, time.Time{}
	}
	if room >= max(1, ahead/2) {
		return room, time.Time{}
	}
	if free == 0 {
		return 0, time.Time{} // the buffer feeds the slots meanwhile
	}
	if wait := c.demand.patience(now); wait > 0 && len(c.running) > 0 {
		return 0, now.Add(wait)
	}
	return room, time.Time{}
}
