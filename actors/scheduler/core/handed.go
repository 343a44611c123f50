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
		// The very claim: the row may have been claimed anew since. One that a core took over counts as running to its end.
		if h := c.running[r.Row.ID]; h != nil && h.row == r.Row && !h.handed && !h.returned {
			h.handed = true
			c.handed++
			c.demand.ended(r.Took, now)
		}
	}
}

// onReturning takes the wish for a slot of a row whose outcome the database refused: its error handler is to run. It may be the
// first that this core hears of the slot having been given up, if it took over from one that failed. A row that is not
// known yet is left: whoever tells what runs repeats the wish. A wish that was granted may be repeated, too, while the grant is on
// its way.
func (c *Core) onReturning(e Returning) {
	h := c.running[e.ID]
	if h == nil || h.returned {
		return
	}
	h.returned = true
	if !h.handed {
		h.handed = true
		c.handed++
	}
	c.returns = append(c.returns, h)
}

// resumeRows gives free slots to those that had one before. They go first, also while nothing new is started.
func (c *Core) resumeRows() {
	for len(c.returns) > 0 && c.Running() < c.cfg.Concurrency {
		h := c.returns[0]
		c.returns[0] = nil
		c.returns = c.returns[1:]
		if c.running[h.id] != h {
			continue
		}
		h.handed = false
		c.handed--
		c.fx.Resume = append(c.fx.Resume, h.id)
	}
	if len(c.returns) == 0 {
		c.returns = nil
	}
}
