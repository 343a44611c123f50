package core

import (
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// A chain that gives up its slot for a commit wants one again milliseconds later. Where all steps are short one comes free by
// then. A run that took it and kept it, for a long step or for many without giving it up in between, would keep the chain waiting, after
// each of its commits. So chains keep their slots for a while once the queue has run what is not known to be short.

const (
	// longStep is for how long a run keeps its slot that is slow: a returning chain has to wait for it, see returnPatience.
	longStep = returnPatience / 4
	// slowFor is for how long chains keep their slots for the sake of a row that was taken.
	slowFor = time.Minute
	// maxPaces bounds what is known.
	maxPaces = 1000
)

// pace is what is known of the runs that begin at one step.
type pace struct {
	running int
	quick   bool          // they keep their slots for short, on the average of the last, and did so since slowFor
	keeps   time.Duration // smoothed: how long one keeps its slot without being ready to give it up
	slow    time.Time     // until when it cannot be quick
}

type paces struct {
	of map[pg.StepRef]*pace
	// others is the pace of runs of which nothing is known, nor will be. Invariant: it is not quick.
	others pace
	// slow is how many of the running rows are not known to be quick.
	slow int
	// kept is until when chains keep their slots because such a row was taken; it may have to wait for its start.
	kept time.Time
}

func (p *paces) pace(row *pg.Claimed) *pace {
	if row == nil || row.CancelReason != nil { // which runs no step
		return &p.others
	}
	ref := pg.StepRef{Machine: row.Machine, Version: row.Version, Step: row.Step}
	known := p.of[ref]
	switch {
	case known != nil:
		return known
	case len(p.of) == maxPaces:
		return &p.others
	case p.of == nil:
		p.of = map[pg.StepRef]*pace{}
	}
	p.of[ref] = new(pace)
	return p.of[ref]
}

// taken notes a row that will be started.
func (p *paces) taken(row *pg.Claimed, now time.Time) {
	if row.CancelReason == nil && !p.pace(row).quick {
		p.kept = now.Add(slowFor)
	}
}

func (p *paces) began(h *held) {
	h.pace = p.pace(h.row)
	h.pace.running++
	if !h.pace.quick {
		p.slow++
	}
}

// judge takes what the end of a run says of those like it.
func (c *Core) judge(h *held, e *actors.StepEnded, now time.Time) {
	p, of, before := &c.paces, h.pace, c.paces.slow
	of.running--
	if !of.quick {
		p.slow--
	}
	gaveUp := e.End == actors.EndVanished || e.End == actors.EndAbandoned
	if of != &p.others && (e.Longest > 0 || gaveUp) {
		keeps := e.Longest
		if gaveUp { // nobody knows for how long
			keeps = max(keeps, 10*longStep)
		}
		of.keeps = smooth(of.keeps, keeps)
		switch {
		case of.keeps >= longStep:
			of.slow = now.Add(slowFor)
			p.mark(of, false)
		case !of.slow.After(now) && !h.cancelled && (e.End == actors.EndCommitted || e.End == actors.EndCrowded):
			p.mark(of, true)
		}
	}
	if before > 0 && p.slow == 0 {
		c.quicker(now)
	}
}

func (p *paces) mark(of *pace, quick bool) {
	switch {
	case of.quick && !quick:
		p.slow += of.running
	case !of.quick && quick:
		p.slow -= of.running
	}
	of.quick = quick
}

// Brisk reports whether a chain should give up its slot for a commit: somebody waits for one, here or by all appearances in the queue,
// and nothing was about lately that may keep it for long.
func (c *Core) Brisk(now time.Time) bool {
	s := &c.supply
	wanted := len(c.buffer)+len(c.returns) > 0 || s.hint == plenty || s.claim.inFlight && s.claim.why == plenty
	return wanted && c.paces.slow == 0 && !c.paces.kept.After(now)
}

// quicker looks anew whether chains may give up their slots, now that all that runs is known to be quick.
func (c *Core) quicker(now time.Time) {
	for _, p := range c.paces.of {
		if p.slow.After(now) {
			return
		}
	}
	for _, h := range c.buffer {
		if !c.paces.pace(h.row).quick {
			return
		}
	}
	c.paces.kept = time.Time{}
}
