// Package core decides what the scheduler of one queue does: a deterministic machine that is fed events and
// the time, and answers with effects. It knows no actors, no goroutines, no clock and no database, so that
// every decision can be shown in a test.
//
// Each claimed row is in exactly one place: buffered (claimed, waits for a slot), running (started, not yet
// ended), or a twin (claimed anew while the end of its earlier run is still to be reported). A row leaves by
// ending, by being released, or because a heartbeat found it lost. A running row holds a slot until its outcome is
// handed to a flusher; from then on it is beaten and waited for as before, but the slot is another's: see handed.go.
package core

import (
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// Config is what a core needs to know. Zero values mean the defaults given.
type Config struct {
	// Concurrency is how many steps run at once; default 10. MaxUncommitted is how many rows more may wait for the commit of
	// their outcome; default 4 for each slot, 1,000 at most.
	Concurrency, MaxUncommitted int
	// Lease is the length of a lease (60 s), Heartbeat the time between two beats (20 s).
	Lease, Heartbeat time.Duration
	// PollBusy and PollIdle bound the time between two claims that nobody asked for; 1 s and 5 s.
	PollBusy, PollIdle time.Duration
	// MaxPrefetch is the most rows that are claimed ahead of free slots, MaxClaim the most one claim asks for; 500 each.
	MaxPrefetch, MaxClaim int
	// DrainGrace is how long a cancelled step may run on at the end of a drain; 2 s.
	DrainGrace time.Duration
	// Knows says whether this process can run a step; nil = any.
	Knows func(pg.StepRef) bool
	// Gates are the names of the gates in force.
	Gates []string
	// CountedElsewhere: the limiter's counters are not in the database, so no claim can read them.
	CountedElsewhere bool
	// Jitter returns a number from 0 up to 1; nil = always a half.
	Jitter func() float64
}

func (c *Config) fill() {
	orInt := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	orTime := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	orInt(&c.Concurrency, 10)
	orInt(&c.MaxUncommitted, min(4*c.Concurrency, 1000))
	orInt(&c.MaxPrefetch, 500)
	orInt(&c.MaxClaim, 500)
	orTime(&c.Lease, 60*time.Second)
	orTime(&c.Heartbeat, 20*time.Second)
	orTime(&c.PollBusy, time.Second)
	orTime(&c.PollIdle, 5*time.Second)
	orTime(&c.DrainGrace, 2*time.Second)
	if c.Knows == nil {
		c.Knows = func(pg.StepRef) bool { return true }
	}
	if c.Jitter == nil {
		c.Jitter = func() float64 { return 0.5 }
	}
}

const (
	maxFuture = 512         // known future wakes that are remembered
	stuck     = time.Second // a buffer that got no slot for so long is given back
	retryMin  = 50 * time.Millisecond
	retryMax  = 5 * time.Second // between two tries of a database that does not answer
)

// held is a row that this scheduler owns.
type held struct {
	row *pg.Claimed // nil for one that was adopted from an earlier life
	id  int64
	// seq orders rows and requests: an answer to a request says nothing of a row that was taken up after it.
	seq       uint64
	started   uint64    // the same for its start; 0 = it was not started by this core
	since     time.Time // when it was claimed
	locked    bool      // the last beat found the row locked
	cancelled bool      // its context was cancelled with fsm.ErrCancelled
	// lost: somebody else may own it; it is beaten no more and its end changes nothing.
	lost bool
	// doubted is when a beat found it lost, as a seq; 0 = it did not, or it has been told. The beat may have been read after the
	// commit of the row's own outcome, whose report is on its way.
	doubted uint64
	// handed: it has given up its slot. turn counts how often it did, as far as is known, and wish is the last turn after which it
	// asked for one again; then it waits in returns since wished.
	handed     bool
	turn, wish int
	wished     time.Time
	chain      bool  // what it waits for is the next step of a chain
	pace       *pace // of the runs like it
	counted    bool  // its end has been counted, see demand
}

// Core is the state of one queue's scheduler. Not safe for concurrent use.
type Core struct {
	cfg Config
	fx  Effects
	seq uint64

	running  map[int64]*held
	handed   int     // how many of the running are
	returns  []*held // that wait for a slot to go on, oldest first; some may have ended since
	buffer   []*held // oldest first
	buffered map[int64]*held
	twins    map[int64]*held
	// left are rows whose run was given up or vanished: no more beaten, but somebody's code may still work on
	// them, so they are not given back either. The value is when to forget them.
	left map[int64]time.Time

	demand demand
	supply supply
	beat   beat
	unheld unheld
	drain  drain
	limits limits
	scan   scan
	pause  pause
	paces  paces

	misfits   misfits
	releasing int  // releases on their way
	crowded   bool // some of them are of chains that found no slot

	// known is false until the running list has been adopted: until then nothing is claimed.
	known  bool
	asked  uint64 // seq of the last AskRunning
	asking bool

	failures int // calls to the database that failed in a row
}

// New makes the core of a scheduler that has just started. Its first event should be a Tick; it then asks
// what runs already, and begins to claim when it knows.
// resumed says that an earlier life of the same identity may have left rows behind.
func New(cfg Config, resumed bool, now time.Time) *Core {
	cfg.fill()
	c := &Core{
		cfg: cfg, running: map[int64]*held{}, buffered: map[int64]*held{}, twins: map[int64]*held{}, left: map[int64]time.Time{},
		misfits: misfits{steps: map[pg.StepRef]*misfit{}}, paces: newPaces(), known: !resumed, limits: newLimits(cfg.Gates, cfg.CountedElsewhere),
	}
	c.beat.next = now.Add(cfg.Heartbeat)
	c.supply.start(cfg, now)
	if resumed {
		c.suspect(now)
	}
	return c
}

// Running is the number of rows that hold a slot.
func (c *Core) Running() int { return len(c.running) - c.handed }

// Buffered is the number of claimed rows that wait for a slot.
func (c *Core) Buffered() int { return len(c.buffer) + len(c.twins) }

// Misfits is the number of steps that this process was found unable to run, and that are not forgotten.
func (c *Core) Misfits() int { return len(c.misfits.list) }

// Known reports whether it knows what runs, which a core that took over does not at first.
func (c *Core) Known() bool { return c.known }

// On takes one event and answers with what is to be done. The answer is valid until the next call.
func (c *Core) On(e Event, now time.Time) *Effects {
	c.fx.reset()
	switch e := e.(type) {
	case ClaimResult:
		c.onClaim(e, now)
	case AdmitResult:
		c.onAdmit(e, now)
	case InForce:
		if c.limits.inForce(e.Config) {
			c.stir()
		}
	case Freed:
		if c.limits.freed(e.Keys, now) {
			c.stir()
		}
	case Handed:
		c.onHanded(e, now)
	case Returning:
		c.onReturning(e, now)
	case Ended:
		for _, r := range e.Rows {
			c.onEnded(r, now)
		}
	case Poked:
		c.onPoke(e, now)
	case Tick:
	case BeatResult:
		c.onBeat(e, now)
	case ExtendResult:
		c.onExtend(e, now)
	case ReleaseResult:
		c.releasing--
		c.scan.stir()
		if e.Ending > 0 || c.crowded {
			c.supply.note(known) // no limit and no key keeps them from being ended, or from going on
		}
		c.crowded = c.crowded && c.releasing > 0
		c.heard(e.Err)
		if e.Err != nil || e.Kept {
			c.suspect(now) // what was not given back is claimed and not held
		}
	case UnheldResult:
		c.onUnheld(e, now)
	case Running:
		c.onRunning(e, now)
	case StepsRestarted:
		c.asking = false
		c.ask()
	case CancelRequested:
		c.onCancel(e)
	case CancelsRequested:
		for _, r := range e.Cancels {
			c.onCancel(CancelRequested{ID: r.ID, Claim: r.Claim, Reason: r.Reason})
		}
	case Paused:
		c.onPaused()
	case Orphaned:
		c.suspect(now)
	case Drain:
		c.onDrain(e, now)
	}
	c.decide(now)
	return &c.fx
}

// decide does what the state calls for, whatever the event was.
func (c *Core) decide(now time.Time) {
	if !c.known {
		c.ask()
	}
	c.resumeRows(now)
	c.startRows()
	c.giveBackStuck(now)
	c.decideDrain(now)
	c.decideMisfits(now)
	c.decideBeat(now)
	c.decideUnheld(now)
	c.decideClaim(now)
	c.decideDrained(now)
	c.fx.Wake = c.nextWake(now)
}

func (c *Core) nextSeq() uint64 {
	c.seq++
	return c.seq
}

func (c *Core) ask() {
	if !c.asking {
		c.asking, c.asked = true, c.nextSeq()
		c.fx.AskRunning = true
	}
}

func (c *Core) startRows() {
	if !c.known || c.drain.on {
		return
	}
	for len(c.buffer) > 0 && c.free() > 0 {
		h := c.buffer[0]
		c.buffer[0] = nil
		c.buffer = c.buffer[1:]
		delete(c.buffered, h.id)
		h.started = c.nextSeq()
		c.running[h.id] = h
		c.paces.began(h)
		c.fx.Start = append(c.fx.Start, h.row)
	}
	if len(c.buffer) == 0 {
		c.buffer = nil
	}
}

func (c *Core) release(row *pg.Claimed) { c.giveUp(pg.ClaimRef{ID: row.ID, Claim: row.Claim}) }

// giveUp gives a row back, if it is under that very claim then: a look at what is unheld, which does not wait for releases, may have
// given it back before, and it may be held anew.
func (c *Core) giveUp(claim pg.ClaimRef) {
	if len(c.fx.Release) == 0 {
		c.releasing++
	}
	c.fx.Release = append(c.fx.Release, claim)
}

// giveBackStuck releases the buffer when its oldest row has waited for long: its rows are hostages of steps
// that turned out to be slow, while another node may have slots.
func (c *Core) giveBackStuck(now time.Time) {
	if len(c.buffer) > 0 && !c.buffer[0].since.Add(stuck).After(now) {
		for _, h := range c.buffer {
			c.release(h.row)
		}
		c.buffer = nil
		clear(c.buffered)
	}
	for id, h := range c.twins { // each waits for the end of its own earlier run
		if !h.since.Add(stuck).After(now) {
			c.release(h.row)
			delete(c.twins, id)
		}
	}
}

// stuckAt is when the buffer counts as stuck; zero = there is none.
func (c *Core) stuckAt() time.Time {
	var oldest time.Time
	if len(c.buffer) > 0 {
		oldest = c.buffer[0].since
	}
	for _, h := range c.twins {
		if oldest.IsZero() || h.since.Before(oldest) {
			oldest = h.since
		}
	}
	if oldest.IsZero() {
		return oldest
	}
	return oldest.Add(stuck)
}

func (c *Core) releaseBuffered() {
	for _, h := range c.buffer {
		c.release(h.row)
	}
	c.buffer = nil
	clear(c.buffered)
	for _, h := range c.twins {
		c.release(h.row)
	}
	clear(c.twins)
}

func (c *Core) onEnded(e actors.StepEnded, now time.Time) {
	h := c.running[e.ID]
	if h == nil {
		return
	}
	delete(c.running, e.ID)
	c.judge(h, &e, now)
	if h.doubted != 0 && e.End != actors.EndCommitted {
		c.fx.Lost++
	}
	if h.handed {
		c.handed--
	}
	if !h.counted {
		c.demand.ended(e.Took, now)
	}
	switch e.End {
	case actors.EndCommitted:
		c.supply.requeued(e.Delay, now)
		c.fits(h.row)
	case actors.EndVanished, actors.EndAbandoned:
		c.left[e.ID] = now.Add(2 * c.cfg.Lease)
	case actors.EndUnknown:
		if e.Step != (pg.StepRef{}) {
			c.strike(e.Step, false, h.seq, now)
		}
		if !h.lost {
			c.giveUp(pg.ClaimRef{ID: e.ID, Claim: e.Claim})
		}
	case actors.EndCrowded:
		if !h.lost {
			c.crowded = true
			c.giveUp(pg.ClaimRef{ID: e.ID, Claim: e.Claim})
		}
	case actors.EndDenied:
		c.supply.at(now.Add(retryMin)) // when the row is back
		if e.Denied.By != "" {
			c.limits.deny(limitKey{e.Denied.By, e.Denied.Key}, e.Denied, 0, now, c.cfg.Jitter())
		}
		if !h.lost {
			c.giveUp(pg.ClaimRef{ID: e.ID, Claim: e.Claim})
		}
	}
	// A gate's slot comes free with its credit, of which a Freed tells.
	if h.row == nil || h.row.ConcurrencyKey != "" && h.row.ConcurrencyShard == nil {
		c.scan.stir() // the key is free: a row that it held back may run
		c.supply.poke()
	}
	if t := c.twins[e.ID]; t != nil {
		delete(c.twins, e.ID)
		c.buffer = append([]*held{t}, c.buffer...)
		c.buffered[t.id] = t
	}
}

// onRunning makes the list of the steps actor the truth. What was started after the question is not in it.
func (c *Core) onRunning(e Running, now time.Time) {
	c.asking = false
	runs := make(map[int64]bool, len(e.IDs))
	for _, id := range e.IDs {
		runs[id] = true
		if c.running[id] == nil {
			h := &held{id: id, seq: c.nextSeq()}
			c.running[id] = h
			c.paces.began(h)
		}
	}
	for id, h := range c.running {
		if !runs[id] && h.started < c.asked {
			c.onEnded(actors.StepEnded{ID: id, End: actors.EndAbandoned}, now)
		}
	}
	c.resolveDoubts(e.Committing)
	c.known = true
}

func (c *Core) onCancel(e CancelRequested) {
	// Of another claim it says nothing: the instance may have ended and been retried since.
	meant := func(h *held) bool { return h != nil && (e.Claim == 0 || h.row == nil || h.row.Claim == e.Claim) }
	if h := c.running[e.ID]; meant(h) {
		c.cancelRequested(h)
	}
	if h := c.buffered[e.ID]; meant(h) {
		h.row.CancelReason = &e.Reason
	}
	if h := c.twins[e.ID]; meant(h) {
		h.row.CancelReason = &e.Reason
	}
}

func (c *Core) cancelRequested(h *held) {
	if !h.cancelled && !h.lost {
		h.cancelled = true
		c.fx.Cancel = append(c.fx.Cancel, Cancel{h.id, fsm.ErrCancelled})
	}
}
