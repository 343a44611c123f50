package core

import "time"

// A step's slot is for its code. Once the outcome is with a flusher the next step may run, so that what is committed together
// does not end at the Concurrency, and no slot waits for the disk. Two things bound it: user code never runs in more than
// Concurrency slots, and no more than MaxUncommitted rows wait for their commit beside them. Nothing else changes for such a
// row: it is claimed, beaten, waited for in a drain, and its key or its gate's slot is its own until the commit.

// free is how many more rows may be started. A restarted scheduler may find more running than its Concurrency.
func (c *Core) free() int {
	return max(0, min(c.cfg.Concurrency-c.Running(), c.cfg.Concurrency+c.cfg.MaxUncommitted-len(c.running)))
}

// Handed is the number of rows that wait for the commit of their outcome without a slot.
func (c *Core) Handed() int { return c.handed }

// Tight reports whether slots are in demand. While they are not, nobody needs to hear that one is given up before its time.
func (c *Core) Tight() bool { return len(c.buffer) > 0 || 2*c.Running() >= c.cfg.Concurrency }

func (c *Core) onHanded(e Handed, now time.Time) {
	for _, r := range e.Rows {
		// The very claim: the row may have been claimed anew since. One that a core took over counts as running until it asks
		// for a slot, or to its end. And the very turn: what is told late may be over.
		h := c.running[r.Row.ID]
		if h == nil || h.row != r.Row || r.Turn <= h.turn {
			continue
		}
		c.gaveUp(h, r.Turn)
		if r.Took > 0 && !h.counted { // a chain that goes on is not one row less to run
			h.counted = true
			c.demand.ended(r.Took, now)
		}
	}
}

func (c *Core) gaveUp(h *held, turn int) {
	h.turn = turn
	if !h.handed {
		h.handed = true
		c.handed++
	}
}

// returnPatience is how long the next step of a chain waits for a slot. It is ready because slots came free sooner than commits;
// now steps must have become long, and it waits in its queue, where its key and its gate's slot keep nobody from running.
const returnPatience = 100 * time.Millisecond

// onReturning takes the wish for a slot of rows that have more code to run: the next step of a chain, or the error handler of an
// outcome that the database refused. It may be the first that this core hears of the slot having been given up: it took over
// from one that failed, or the word of it is on its way. A row that is not known yet is left: whoever tells what runs repeats the
// wish. A wish that was granted may be repeated, too, while the grant is on its way; and one of an earlier run of a row may be told
// when the next one runs.
func (c *Core) onReturning(e Returning, now time.Time) {
	for _, r := range e.Rows {
		h := c.running[r.Row.ID]
		if h == nil || h.row != nil && h.row != r.Row || r.Turn <= h.wish {
			continue
		}
		c.gaveUp(h, max(r.Turn, h.turn))
		h.wish, h.wished, h.chain = r.Turn, now, r.Chain
		c.returns = append(c.returns, h)
	}
}

// resumeRows gives free slots to those that had one before. They go first, also while nothing new is started.
func (c *Core) resumeRows(now time.Time) {
	leaving := c.drain.on || c.pause.on
	waiting := c.returns[:0]
	for i, h := range c.returns {
		late := !h.wished.Add(returnPatience).After(now)
		switch {
		case c.running[h.id] != h || !h.handed: // it has ended, or is here twice and has got one
		case !(h.chain && leaving) && c.Running() < c.cfg.Concurrency:
			h.handed = false
			c.handed--
			c.fx.Resume = append(c.fx.Resume, Resumed{ID: h.id, Turn: h.wish})
		case h.chain && (leaving || late):
			c.fx.Resume = append(c.fx.Resume, Resumed{ID: h.id, Turn: h.wish, PutBack: true})
		case !h.chain: // behind it may be some that are put back
			waiting = append(waiting, h)
		default: // those behind it have waited for less
			waiting = append(waiting, c.returns[i:]...)
			clear(c.returns[len(waiting):])
			c.returns = waiting
			return
		}
	}
	clear(c.returns[len(waiting):])
	if c.returns = waiting; len(waiting) == 0 {
		c.returns = nil
	}
}

// returnsUntil is when the next row that waits for a slot is put back; zero = none is.
func (c *Core) returnsUntil() time.Time {
	for _, h := range c.returns {
		if h.chain {
			return h.wished.Add(returnPatience)
		}
	}
	return time.Time{}
}
