package core

import (
	"slices"
	"time"
)

// hint says why there may be rows to claim.
type hint int

const (
	dry    hint = iota // the last claim came back short and nothing was heard since
	polled             // it is time to look anyway
	poked              // somebody says that there is work
	known              // this scheduler itself knows of work
	plenty             // the last claim was filled
)

// Empty picks that pokes caused make the next poke wait, from pokeFirst doubling up to pokeMost.
const (
	pokeFirst = 2 * time.Millisecond
	pokeMost  = 100 * time.Millisecond
	pokeQuiet = time.Second // an empty pick so long ago counts no more
)

// supply is what is known of the rows in the database.
type supply struct {
	hint  hint
	claim struct {
		inFlight bool
		asked    int
		seq      uint64 // of the question
		why      hint
		heard    hint // the strongest hint that came while it was on its way
		// admitting: it has brought rows, of some of which the limiter decides just now. It is not over before that.
		admitting bool
		free      bool // it has brought rows that need no admission
		rows      int  // that it brought; then those that it could have brought
		began     time.Time
		// left: it has left rows that it could have brought, because the limiter was likely to admit no more of them.
		left bool
	}
	lastRows time.Time // when a claim last brought rows

	poll     time.Duration // the present interval
	nextPoll time.Time
	retryAt  time.Time // after a failed claim

	pokeWait  time.Duration
	pokeEmpty time.Time // the last empty pick that a poke caused

	// future are the times at which rows become eligible, ascending, as far as known.
	// Invariant: at most maxFuture; what is forgotten the poll finds.
	future []time.Time
	ahead  ahead
}

func (s *supply) start(cfg Config, now time.Time) {
	s.hint, s.poll, s.nextPoll = polled, cfg.PollBusy, now
	s.ahead.due = true
}

// note takes a hint; the strongest counts. While a claim is on its way the hint is kept for after it.
func (s *supply) note(h hint) {
	if s.claim.inFlight {
		s.claim.heard = max(s.claim.heard, h)
		return
	}
	s.hint = max(s.hint, h)
}

func (s *supply) poke() { s.note(poked) }

// requeued takes the delay of a row that this node put back; negative = it did not.
func (s *supply) requeued(delay time.Duration, now time.Time) {
	switch {
	case delay == 0:
		s.note(known)
	case delay > 0:
		s.at(now.Add(delay))
	}
}

// at notes that a row becomes eligible at t.
func (s *supply) at(t time.Time) {
	t = t.Truncate(time.Millisecond).Add(time.Millisecond) // many rows of one moment are one wake
	i, found := slices.BinarySearchFunc(s.future, t, time.Time.Compare)
	if found || i >= maxFuture {
		return
	}
	s.future = slices.Insert(s.future, i, t)
	if len(s.future) > maxFuture {
		s.future = s.future[:maxFuture]
	}
}

// due turns what the clock brings into hints.
func (s *supply) due(now time.Time) {
	n := 0
	for n < len(s.future) && !s.future[n].After(now) {
		n++
	}
	if n > 0 {
		s.future = slices.Delete(s.future, 0, n)
		s.note(known)
	}
	if s.ahead.come(now) {
		s.note(known)
	}
	if !s.claim.inFlight && !s.nextPoll.After(now) {
		s.note(polled)
		s.ahead.due = true
	}
}

// pokeAt is when a poke may next cause a claim.
func (s *supply) pokeAt() time.Time {
	if s.pokeWait == 0 {
		return time.Time{}
	}
	return s.pokeEmpty.Add(s.pokeWait)
}

// answered takes the outcome of a claim.
func (s *supply) answered(cfg Config, now time.Time) {
	why, heard, rows := s.claim.why, s.claim.heard, s.claim.rows
	short := rows < s.claim.asked
	s.claim.inFlight, s.claim.heard = false, dry
	switch {
	case rows > 0:
		s.poll, s.lastRows, s.pokeWait = cfg.PollBusy, now, 0
	case why == polled:
		s.poll = min(2*s.poll, cfg.PollIdle)
	case why == poked:
		if now.Sub(s.pokeEmpty) > pokeQuiet {
			s.pokeWait = 0
		}
		s.pokeWait = min(max(2*s.pokeWait, pokeFirst), pokeMost)
		s.pokeEmpty = now
	}
	s.hint = heard
	if s.claim.left {
		s.hint, s.claim.left = max(s.hint, known), false
	}
	if !short {
		s.hint = plenty
	}
	s.armPoll(cfg, now)
}

// failed takes a claim that brought an error: what it was made for still holds.
func (s *supply) failed(cfg Config, retry time.Duration, now time.Time) {
	s.hint = max(s.claim.why, s.claim.heard)
	s.claim.inFlight, s.claim.heard = false, dry
	s.retryAt = now.Add(retry)
	s.armPoll(cfg, now)
}

// armPoll sets the next poll, up to a fifth earlier or later than the interval so that nodes spread out.
func (s *supply) armPoll(cfg Config, now time.Time) {
	s.nextPoll = now.Add(time.Duration(float64(s.poll) * (0.8 + 0.4*cfg.Jitter())))
}

func (c *Core) onPoke(e Poked, now time.Time) {
	if e.In > 0 {
		c.supply.at(now.Add(e.In))
		c.supply.ahead.foresee(now.Add(e.In)) // only the earliest of several is announced
		return
	}
	c.supply.poke()
}

func (c *Core) decideClaim(now time.Time) {
	s := &c.supply
	if c.drain.on {
		return
	}
	s.due(now)
	if c.releasing == 0 && c.limits.due(now) {
		c.stir()
	}
	if at := c.scan.next(); !at.IsZero() && !at.After(now) {
		s.note(known)
	}
	if n, _ := c.claimNow(now); n > 0 {
		s.claim.inFlight, s.claim.asked, s.claim.why, s.claim.seq = true, n, s.hint, c.nextSeq()
		c.fx.Claim, c.fx.Skip, c.fx.Limits = n, c.misfits.skip, c.limits.forClaim()
		c.fx.Since, c.fx.Others, c.fx.Survey = c.scan.begin(now)
		if c.fx.Passed = c.scan.passed(); c.fx.Since == nil { // it walks what this claim passes over
			c.fx.Ahead = s.ahead.ask(c.cfg)
		}
	}
}

// claimNow is how many rows to claim now, or when to look again; neither when only an event can change that.
func (c *Core) claimNow(now time.Time) (n int, until time.Time) {
	s := &c.supply
	if s.claim.inFlight || c.unheld.inFlight || !c.known || c.drain.on {
		return 0, time.Time{}
	}
	if s.hint == dry {
		return 0, c.sooner(s.nextPoll)
	}
	n, until = c.wanted(now)
	if n == 0 {
		return 0, until
	}
	if s.retryAt.After(now) {
		return 0, s.retryAt
	}
	if s.hint == poked && s.pokeAt().After(now) {
		return 0, c.sooner(s.pokeAt())
	}
	return n, time.Time{}
}

// sooner is the earlier of a time and the next at which rows are known to become eligible, or a limit to open.
func (c *Core) sooner(at time.Time) time.Time {
	if future := c.supply.future; len(future) > 0 && future[0].Before(at) {
		at = future[0]
	}
	if s := c.supply.ahead.at; !s.IsZero() && s.Before(at) {
		at = s
	}
	if s := c.limits.soonest; c.releasing == 0 && !s.IsZero() && s.Before(at) {
		at = s
	}
	if s := c.scan.next(); !s.IsZero() && s.Before(at) {
		at = s
	}
	return at
}

// stir notes that rows which could not run before can, perhaps.
func (c *Core) stir() {
	c.scan.stir()
	c.supply.note(known)
}

func (c *Core) onClaim(e ClaimResult, now time.Time) {
	if !c.supply.claim.inFlight || c.supply.claim.admitting {
		return
	}
	c.heard(e.Err)
	c.supply.ahead.answered(&e, now)
	if e.Err != nil {
		c.supply.failed(c.cfg, c.retryIn(), now)
		c.scan.failed(now)
		if e.Unknown {
			c.suspect(now)
		}
		return
	}
	c.scan.claimed(&e, c.supply.claim.asked, now)
	if c.supply.claim.why == poked && len(e.Rows)+e.Pending == 0 && !c.scan.inFlight.full {
		c.stir() // what was announced was here before: rows of a dead process
	}
	unknownBefore := len(c.fx.Unknown)
	usable := 0
	idle := len(c.running) == 0
	if len(e.Rows)+e.Pending > 0 && c.claimedInPause(c.supply.claim.seq) {
		c.giveBack(e.Rows)
		e.Rows, e.Looked = nil, 0
	}
	for i := range e.Rows {
		if c.take(&e.Rows[i], now) {
			usable++
		}
	}
	if usable > 0 {
		c.demand.claimed(e.Took)
		if idle {
			c.demand.began(now)
		}
	}
	c.supply.claim.began = now.Add(-e.Took)
	c.beatSoon(now)
	c.supply.claim.free = len(e.Rows) > 0
	if c.supply.claim.left = e.Pending > 0 && e.Looked > len(e.Rows)+e.Pending; c.supply.claim.left {
		c.scan.stir() // what it left has not come to be passed over
	}
	if c.supply.claim.rows = max(len(e.Rows)+e.Pending, e.Looked); e.Pending > 0 {
		c.supply.claim.admitting = true
		return
	}
	heard := c.supply.claim.heard
	c.claimed(now)
	if usable == 0 && len(e.Rows) > 0 && len(c.fx.Unknown) == unknownBefore {
		// Nothing but rows that cannot run here and that the claim was asked to leave out: no need to hurry.
		c.supply.hint = heard
	}
}

// claimed ends a claim, now that it is known of each row whether it may run.
func (c *Core) claimed(now time.Time) {
	c.supply.answered(c.cfg, now)
	if len(c.limits.probed) > 0 {
		// Rows that a claim passes over by the counters are found by the poll alone when another process frees a slot.
		c.supply.poll = c.cfg.PollBusy
		c.supply.armPoll(c.cfg, now)
	}
}

// heard keeps account of whether the database answers.
func (c *Core) heard(err error) {
	if err != nil {
		if c.failures == 0 {
			c.fx.Outage = err
		}
		c.failures++
		return
	}
	if c.failures > 0 {
		c.failures = 0
		c.supply.retryAt = time.Time{}
		c.fx.Recovered = true
	}
}

// retryIn is the pause after a failed call: doubling with each failure, jittered.
func (c *Core) retryIn() time.Duration {
	d := retryMin
	for i := 1; i < c.failures && d < retryMax; i++ {
		d *= 2
	}
	return time.Duration(float64(min(d, retryMax)) * (0.75 + 0.5*c.cfg.Jitter()))
}
