package core

import (
	"slices"
	"time"

	"github.com/gendurable/gendurable/pg"
)

const (
	maxMisfits = 1000 // that are remembered
	// misfitFirst and misfitMost bound how long a step is left out whose state did not decode.
	misfitFirst = time.Second
	misfitMost  = 5 * time.Minute
)

// misfits are the steps that this process was found unable to run. One that it does not know is left out of the claims for good:
// a process's machines do not change. One whose state did not decode is tried again, because that may have been a single
// row's fault, or that of a key store which failed for a moment.
type misfits struct {
	list  []pg.StepRef // in the order in which they were found
	steps map[pg.StepRef]*misfit
	// skip are those that claims leave out just now. Never changed in place: a claim may have it in its hands.
	skip []pg.StepRef
	next time.Time // when something is due; zero = never
}

type misfit struct {
	until time.Time // left out until then; zero = for good
	// pause is how long it was left out the last time, 0 = not since a row of this step was committed.
	pause time.Duration
	seq   uint64    // what was claimed before this says nothing new
	gone  time.Time // when it is forgotten, if nothing happens
}

// strike leaves a step out of the claims: for good, or, when a state of it that was claimed at seq did not decode, for a time
// that doubles for as long as no row of the step is committed.
func (c *Core) strike(s pg.StepRef, forGood bool, seq uint64, now time.Time) {
	m := c.misfits.steps[s]
	if m == nil {
		if len(c.misfits.list) == maxMisfits {
			c.forgive(c.misfits.list[0])
		}
		m = &misfit{}
		c.misfits.steps[s] = m
		c.misfits.list = append(c.misfits.list, s)
		c.fx.Unknown = append(c.fx.Unknown, s)
		c.tellMisfits()
	} else if forGood || m.until.IsZero() || m.until.After(now) || seq < m.seq {
		return // one of many that were claimed together, or were on their way
	}
	if !forGood {
		m.pause = min(max(2*m.pause, misfitFirst), misfitMost)
		m.until = now.Add(time.Duration(float64(m.pause) * (0.75 + 0.5*c.cfg.Jitter())))
		m.gone = m.until.Add(m.pause + 2*c.cfg.PollIdle)
		m.seq = c.nextSeq()
	}
	c.leaveOut(now)
}

// fits takes that a row of the step was committed: what does not decode are single rows. Those in between are to wait no
// longer than need be.
func (c *Core) fits(row *pg.Claimed) {
	if len(c.misfits.steps) == 0 || row == nil || row.CancelReason != nil {
		return
	}
	if m := c.misfits.steps[pg.StepRef{Machine: row.Machine, Version: row.Version, Step: row.Step}]; m != nil {
		m.pause = 0
	}
}

// decideMisfits lets the claims bring the steps again whose time has come, and forgets those that gave no offence since.
func (c *Core) decideMisfits(now time.Time) {
	if at := c.misfits.next; at.IsZero() || at.After(now) {
		return
	}
	for _, s := range slices.Clone(c.misfits.list) {
		if m := c.misfits.steps[s]; !m.until.IsZero() && !m.gone.After(now) {
			c.forgive(s)
		}
	}
	before := len(c.misfits.skip)
	c.leaveOut(now)
	if len(c.misfits.skip) < before {
		c.stir()
	}
}

// leaveOut makes the list for the claims anew.
func (c *Core) leaveOut(now time.Time) {
	f := &c.misfits
	f.skip, f.next = nil, time.Time{}
	for _, s := range f.list {
		m := f.steps[s]
		due := m.until
		if due.IsZero() || due.After(now) {
			f.skip = append(f.skip, s)
		} else {
			due = m.gone
		}
		if !due.IsZero() && (f.next.IsZero() || due.Before(f.next)) {
			f.next = due
		}
	}
}

func (c *Core) forgive(s pg.StepRef) {
	delete(c.misfits.steps, s)
	c.misfits.list = slices.DeleteFunc(slices.Clone(c.misfits.list), func(o pg.StepRef) bool { return o == s })
	c.fx.Forgiven++
	c.tellMisfits()
}

// tellMisfits has the whole list told: others read it, so it is theirs.
func (c *Core) tellMisfits() { c.fx.Misfits = append([]pg.StepRef{}, c.misfits.list...) }
