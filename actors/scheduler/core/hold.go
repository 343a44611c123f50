package core

import (
	"slices"
	"time"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// take puts a claimed row where it belongs; false = it was given back.
func (c *Core) take(row *pg.Claimed, now time.Time) bool {
	delete(c.left, row.ID)
	if c.drain.on {
		c.release(row)
		return false
	}
	ref := pg.StepRef{Machine: row.Machine, Version: row.Version, Step: row.Step}
	if row.CancelReason == nil && !c.cfg.Knows(ref) {
		c.strike(ref, true, 0, now)
		c.release(row)
		return false
	}
	h := &held{row: row, id: row.ID, seq: c.nextSeq(), since: now, pace: c.paces.take(row, now)}
	if old := c.running[row.ID]; old != nil {
		// Either the old run's outcome is durable and only its report is late, or the lease was lost and the row
		// came back. Cancelling harms only the second; the new run waits for the end of the old one in both.
		c.lose(old)
		c.twins[row.ID] = h
		return true
	}
	if old := c.buffered[row.ID]; old != nil {
		c.lostSlot(old)
		*old = *h // the lease of the buffered one had run out
		return true
	}
	c.buffer = append(c.buffer, h)
	c.buffered[row.ID] = h
	return true
}

// lose stops a run whose row is, or may be, somebody else's.
func (c *Core) lose(h *held) {
	if !h.lost {
		h.lost = true
		c.fx.Cancel = append(c.fx.Cancel, Cancel{h.id, fsm.ErrLeaseLost})
	}
}

// beat is the heartbeat.
type beat struct {
	next     time.Time
	inFlight bool
	seq      uint64 // of the beat in flight
	// extending are the ids whose lease is extended alone just now; the value is when that began.
	extending map[int64]uint64
}

func (c *Core) decideBeat(now time.Time) {
	if c.beat.next.After(now) || c.beat.inFlight {
		return
	}
	c.beat.next = now.Add(c.cfg.Heartbeat)
	c.forgetLeft(now)
	c.ask() // a report that went astray would otherwise hold a slot for ever
	if now.Before(c.unheld.until) {
		c.unheld.due = now
	}
	for id, h := range c.running {
		if !h.lost {
			c.fx.Beat = append(c.fx.Beat, id)
		}
	}
	for _, h := range c.buffer {
		c.fx.Beat = append(c.fx.Beat, h.id)
	}
	for id := range c.twins {
		c.fx.Beat = append(c.fx.Beat, id)
	}
	if len(c.fx.Beat) > 0 {
		c.beat.inFlight, c.beat.seq = true, c.nextSeq()
	}
}

// beatSoon extends the leases that a slow claim has brought at once: they began with it.
func (c *Core) beatSoon(now time.Time) {
	if now.Sub(c.supply.claim.began) > c.cfg.Heartbeat/2 {
		c.beat.next = now
	}
}

func (c *Core) forgetLeft(now time.Time) {
	for id, until := range c.left {
		if until.Before(now) {
			delete(c.left, id)
		}
	}
}

func (c *Core) onBeat(e BeatResult, now time.Time) {
	c.beat.inFlight = false
	c.heard(e.Err)
	if e.Err != nil {
		soonest := now.Add(min(c.retryIn(), c.cfg.Heartbeat/4))
		if soonest.Before(c.beat.next) {
			c.beat.next = soonest
		}
		return
	}
	lost := map[int64]bool{}
	for _, b := range e.Beats {
		c.beaten(b, c.beat.seq, true, lost)
	}
	c.dropBuffered(lost)
}

func (c *Core) onExtend(e ExtendResult, now time.Time) {
	asked, ok := c.beat.extending[e.Beat.ID]
	delete(c.beat.extending, e.Beat.ID)
	if e.Err != nil || !ok {
		return // the next beat asks again
	}
	lost := map[int64]bool{}
	c.beaten(e.Beat, asked, false, lost)
	c.dropBuffered(lost)
}

// beaten takes the answer for one id, to a question that was asked at seq.
func (c *Core) beaten(b pg.Beat, seq uint64, mayExtend bool, lost map[int64]bool) {
	h := c.twins[b.ID]
	running := false
	if h == nil {
		h = c.running[b.ID]
		running = h != nil
	}
	if h == nil {
		h = c.buffered[b.ID]
	}
	if h == nil || h.seq > seq || h.lost {
		return
	}
	wasLocked := h.locked
	h.locked = b.State == pg.Locked
	switch {
	case b.State == pg.Lost && running:
		c.lose(h)
		h.doubted = c.nextSeq()
		c.ask()
	case b.State == pg.Lost:
		c.fx.Lost++
		lost[b.ID] = true
	case b.CancelReason != nil && running:
		c.cancelRequested(h)
	case b.CancelReason != nil:
		h.row.CancelReason = b.CancelReason
	}
	if h.locked && wasLocked && mayExtend {
		c.extend(h)
	}
}

// resolveDoubts tells of the runs that a beat found lost: one whose outcome was with no flusher when the list was made, later
// than the beat, had committed nothing. Of the others their end will tell.
func (c *Core) resolveDoubts(committing []int64) {
	again := false
	for id, h := range c.running {
		switch {
		case h.doubted == 0:
		case h.doubted > c.asked:
			again = true
		case !slices.Contains(committing, id):
			h.doubted = 0
			c.fx.Lost++
		}
	}
	if again {
		c.ask()
	}
}

func (c *Core) extend(h *held) {
	if _, ok := c.beat.extending[h.id]; ok {
		return
	}
	if c.beat.extending == nil {
		c.beat.extending = map[int64]uint64{}
	}
	c.beat.extending[h.id] = c.nextSeq()
	c.fx.Extend = append(c.fx.Extend, h.id)
}

func (c *Core) dropBuffered(lost map[int64]bool) {
	if len(lost) == 0 {
		return
	}
	kept := c.buffer[:0:0]
	for _, h := range c.buffer {
		if !lost[h.id] {
			kept = append(kept, h)
		} else {
			c.lostSlot(h)
		}
	}
	c.buffer = kept
	for id := range lost {
		if t := c.twins[id]; t != nil {
			c.lostSlot(t)
		}
		delete(c.buffered, id)
		delete(c.twins, id)
	}
}

// lostSlot notes the slot of a row that waited and is somebody else's now.
func (c *Core) lostSlot(h *held) {
	if r := h.row; r.ConcurrencyShard != nil && *r.ConcurrencyShard >= 0 {
		c.fx.LostSlots = append(c.fx.LostSlots, limiter.Slot{ID: r.ID, Claim: r.Claim, Key: r.ConcurrencyKey, Shard: *r.ConcurrencyShard})
	}
}

// keptRetry is when to try again to give back rows whose locks somebody holds.
const keptRetry = 500 * time.Millisecond

// unheld looks after rows that may be claimed under this identity without anybody here knowing.
type unheld struct {
	until    time.Time // such rows may exist until then
	due      time.Time // when to look next; zero = not due
	inFlight bool
}

// suspect notes that rows may have been claimed that nobody holds: at once, and with each beat for the length
// of a lease, because a statement whose connection is lost may still run and commit later.
func (c *Core) suspect(now time.Time) {
	c.unheld.until = now.Add(c.cfg.Lease)
	if c.unheld.due.IsZero() {
		c.unheld.due = now
	}
}

// AwaitLook says that a look of an earlier life is on its way. What it does not know it gives back: nothing must be claimed before it is
// over, which an UnheldResult tells.
func (c *Core) AwaitLook() { c.unheld.inFlight = true }

// decideUnheld never runs beside a claim, whose rows it would take for unheld.
func (c *Core) decideUnheld(now time.Time) {
	u := &c.unheld
	if !c.known || u.inFlight || c.supply.claim.inFlight || u.due.IsZero() || u.due.After(now) {
		return
	}
	u.due, u.inFlight = time.Time{}, true
	c.fx.ReleaseUnheld, c.fx.Held = true, []int64{}
	for id := range c.running {
		c.fx.Held = append(c.fx.Held, id)
	}
	for _, h := range c.buffer {
		c.fx.Held = append(c.fx.Held, h.id)
	}
	for id := range c.left {
		c.fx.Held = append(c.fx.Held, id)
	}
}

func (c *Core) onUnheld(e UnheldResult, now time.Time) {
	c.unheld.inFlight = false
	c.heard(e.Err)
	if e.Err != nil {
		c.unheld.until = now.Add(c.cfg.Lease)
		c.unheld.due = now.Add(c.retryIn())
		return
	}
	if e.Released > 0 {
		c.stir()
	}
	if e.Kept {
		c.unheld.until = now.Add(c.cfg.Lease)
		c.unheld.due = now.Add(keptRetry)
	}
}
