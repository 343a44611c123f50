package core

import (
	"time"

	"github.com/gendurable/gendurable/fsm"
)

// drain is the way to the end: no claims, the buffer given back, running steps waited for, then cancelled,
// then abandoned to their leases.
type drain struct {
	on        bool
	cancelAt  time.Time
	cancelled bool
	abandonAt time.Time
	abandoned bool
	// giveUpAt is when to stop waiting for the database once nothing runs any more; zero = something runs.
	giveUpAt time.Time
	over     bool
}

func (c *Core) onDrain(e Drain, now time.Time) {
	at := now.Add(max(0, e.Timeout))
	if c.drain.on && !at.Before(c.drain.cancelAt) {
		return // the earlier end counts
	}
	c.drain.on = true
	c.drain.cancelAt, c.drain.abandonAt = at, at.Add(c.cfg.DrainGrace)
}

func (c *Core) decideDrain(now time.Time) {
	d := &c.drain
	if !d.on {
		return
	}
	c.releaseBuffered()
	if !c.known {
		return
	}
	if !d.cancelled && !d.cancelAt.After(now) {
		d.cancelled = true
		for id := range c.running {
			c.fx.Cancel = append(c.fx.Cancel, Cancel{id, fsm.ErrDraining})
		}
	}
	if !d.abandoned && !d.abandonAt.After(now) {
		d.abandoned = true
		for id := range c.running {
			c.fx.Abandon = append(c.fx.Abandon, id)
		}
	}
}

// decideDrained ends the drain when nothing runs and the database has answered, or did not for a grace.
func (c *Core) decideDrained(now time.Time) {
	d := &c.drain
	if !d.on || d.over || !c.known || len(c.running) > 0 {
		return
	}
	if d.giveUpAt.IsZero() {
		d.giveUpAt = now.Add(c.cfg.DrainGrace)
	}
	quiet := !c.supply.claim.inFlight && c.releasing == 0 && !c.unheld.inFlight && c.unheld.due.IsZero()
	if quiet || !d.giveUpAt.After(now) {
		d.over, c.fx.Drained = true, true
	}
}

// nextWake is the nearest time at which something is due.
func (c *Core) nextWake(now time.Time) time.Time {
	var at time.Time
	add := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	d := &c.drain
	if d.over {
		return at
	}
	if !c.beat.inFlight {
		add(c.beat.next)
	}
	add(c.stuckAt())
	add(c.returnsUntil())
	if !c.unheld.inFlight && !c.supply.claim.inFlight {
		add(c.unheld.due)
	}
	if d.on {
		if !d.cancelled {
			add(d.cancelAt)
		} else if !d.abandoned {
			add(d.abandonAt)
		}
		add(d.giveUpAt)
		return at
	}
	_, until := c.claimNow(now)
	add(until)
	add(c.misfits.next)
	return at
}
