package core

import (
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// A chain that gives up its slot for a commit wants one again milliseconds later. Where all steps are short one comes free by
// then. A long step that took it would keep the chain waiting for its own length, after each of its commits. So chains keep their
// slots for a while once the queue has run what is not known to be short.

const (
	// longStep is how long a step takes that makes its run a slow one: a returning chain has to wait for it, see returnPatience.
	longStep = returnPatience / 4
	// slowFor is for how long chains keep their slots for the sake of a row that was taken.
	slowFor = time.Minute
	// maxPaces bounds what is known.
	maxPaces = 1000
)

// pace is what is known of the runs that begin at one step.
type pace struct {
	running int
	quick   bool      // the last one had only short steps, and none since slowFor had others
	slow    time.Time // until when it cannot be quick
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
	if row == nil {
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
	if !p.pace(row).quick {
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

// ended judges the runs of a step by the one that has ended. It reports whether they came to be known as quick.
func (p *paces) ended(h *held, e *actors.StepEnded, now time.Time) (changed bool) {
	of := h.pace
	of.running--
	if !of.quick {
		p.slow--
	}
	long := e.Longest >= longStep || e.End == actors.EndVanished || e.End == actors.EndAbandoned
	switch {
	case of == &p.others || !long && e.Longest == 0: // nothing was run
	case long:
		of.slow = now.Add(slowFor)
		if of.quick {
			of.quick = false
			p.slow += of.running
		}
	case !of.quick && !of.slow.After(now):
		of.quick = true
		p.slow -= of.running
		return true
	}
	return false
}

// Brisk reports whether a chain should give up its slot for a commit: somebody waits for one, here or by all appearances in the queue,
// and nothing was about lately that may keep it for long.
func (c *Core) Brisk(now time.Time) bool {
	s := &c.supply
	wanted := len(c.buffer)+len(c.returns) > 0 || s.hint == plenty || s.claim.inFlight && s.claim.why == plenty
	return wanted && c.paces.slow == 0 && !c.paces.kept.After(now)
}

// quicker looks anew whether chains may give up their slots, now that some runs have come to be known as quick.
func (c *Core) quicker(now time.Time) {
	if c.paces.slow > 0 {
		return
	}
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
