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
	// longStep is for how long a run keeps its slot that is long: a returning chain has to wait for it, see returnPatience.
	longStep = returnPatience / 4
	// longMost is what the longest counts for: one alone makes no pace slow whose runs take up to a third of longStep on the average. It may
	// have been the machine that stood still.
	longMost = 3 * longStep
	// keepFor is for how long chains keep their slots when there is reason to.
	keepFor = time.Minute
	// maxPaces bounds what is known.
	maxPaces = 1000
)

// pace is what is known of the runs that begin at one step.
type pace struct {
	running int
	keeps   time.Duration // smoothed: for how long one keeps its slot without being ready to give it up; 0 = not known
	long    time.Time     // when the last long one ended
	taken   time.Time     // when the last row was, unless it was quick then
}

func (p *pace) quick() bool { return p.keeps > 0 && p.keeps < longStep }

type paces struct {
	of map[pg.StepRef]*pace
	// others is the pace of runs of which nothing is known, nor will be, ending that of rows that are only to be ended. Invariant: the
	// first is not quick, the second is.
	others, ending pace
	// slow is how many of the running rows are not known to be quick.
	slow int
	// coming is until when chains keep their slots because rows that are not known to be quick were taken, of which there may be more; kept
	// is until when they keep them because it turned out that they should have.
	coming, kept time.Time
}

func newPaces() paces { return paces{of: map[pg.StepRef]*pace{}, ending: pace{keeps: 1}} }

func (p *paces) pace(row *pg.Claimed) *pace {
	if row.CancelReason != nil {
		return &p.ending
	}
	ref := pg.StepRef{Machine: row.Machine, Version: row.Version, Step: row.Step}
	known := p.of[ref]
	switch {
	case known != nil:
		return known
	case len(p.of) == maxPaces:
		return &p.others
	}
	p.of[ref] = new(pace)
	return p.of[ref]
}

// take notes a row that will be started, and returns its pace.
func (p *paces) take(row *pg.Claimed, now time.Time) *pace {
	of := p.pace(row)
	if !of.quick() {
		of.taken, p.coming = now, now.Add(keepFor)
	}
	return of
}

// began notes that a row runs. One that was adopted from an earlier life has no pace yet.
func (p *paces) began(h *held) {
	if h.pace == nil {
		h.pace = &p.others
	}
	h.pace.running++
	if !h.pace.quick() {
		p.slow++
	}
}

// judge takes what the end of a run says of those like it, and of what chains should do.
func (c *Core) judge(h *held, e *actors.StepEnded, now time.Time) {
	p, of, before := &c.paces, h.pace, c.paces.slow
	of.running--
	if !of.quick() {
		p.slow--
	}
	if e.End == actors.EndCrowded {
		p.kept = now.Add(keepFor)
	}
	if of != &p.others && of != &p.ending {
		p.learn(of, h, e, now)
	}
	if before > 0 && p.slow == 0 {
		p.quicker()
	}
}

func (p *paces) learn(of *pace, h *held, e *actors.StepEnded, now time.Time) {
	whole := e.End == actors.EndCommitted || e.End == actors.EndDenied || e.End == actors.EndCrowded
	gaveUp := e.End == actors.EndVanished || e.End == actors.EndAbandoned
	keeps := min(e.Longest, longMost)
	switch {
	case gaveUp: // nobody knows for how long
		keeps = longMost
	case keeps == 0, keeps < longStep && (!whole || h.cancelled): // it says nothing
		return
	}
	if keeps >= longStep {
		if now.Sub(of.long) < returnPatience {
			return // whatever held it up has held up others, and counts once
		}
		of.long = now
	}
	before := of.quick()
	of.keeps = smooth(of.keeps, keeps)
	switch quick := of.quick(); {
	case before && !quick:
		p.slow += of.running
		p.kept = now.Add(keepFor)
	case !before && quick:
		p.slow -= of.running
	}
}

// Brisk reports whether a chain should give up its slot for a commit: somebody waits for one, here or by all appearances in the queue,
// and nothing was about lately that may keep it for long.
func (c *Core) Brisk(now time.Time) bool {
	s, p := &c.supply, &c.paces
	wanted := len(c.buffer)+len(c.returns) > 0 || s.hint == plenty || s.claim.inFlight && s.claim.why == plenty
	return wanted && p.slow == 0 && !p.coming.After(now) && !p.kept.After(now)
}

// quicker looks anew for whose sake chains keep their slots, now that all that runs is known to be quick: what was not when it was taken
// may be, too.
func (p *paces) quicker() {
	last := p.others.taken
	for _, of := range p.of {
		if !of.quick() && of.taken.After(last) {
			last = of.taken
		}
	}
	p.coming = last.Add(keepFor)
}
