package core

import (
	"slices"
	"time"

	"github.com/gendurable/gendurable/pg"
)

const (
	// slowClaim is from when on a claim has walked over many rows that nobody can run, or that are dead and cannot be cleaned
	// away, rather than brought some; perRow is what a row that it brings may take.
	slowClaim = 20 * time.Millisecond
	perRow    = 100 * time.Microsecond
	// slowStep is that share of both from when on a claim that passes rows over moves on: it costs nothing.
	slowStep = 4
	// fullEvery is how often all rows are looked at; a look that takes long is followed by fullPause times as long without one.
	fullEvery = time.Second
	fullPause = 9
	// lateCommit is how long an insert may take from its eligible_at to its commit and not be missed by the claims between.
	lateCommit = time.Second
	// uselessFor is for how long nothing is passed over after that has brought no gain.
	uselessFor = 10 * time.Second
)

// scan decides where claims begin. As a rule each looks at all rows that are eligible. When that has become slow, the rows that
// nobody could run at the last full look are passed over, and full looks are made about once a second, but for a tenth of the
// time at most: they find what has come to life there unheard. What this process itself brings to life there, a key that came free
// or rows that it gave back, it looks for at once, but spends no more than a fifth of its time on it. New rows it misses neither
// where others of their priority are nor in a priority that nobody had before.
type scan struct {
	since  []pg.Lane // where to begin; nil = everywhere
	others time.Time // where to begin in priorities that since does not name: when everything was looked at. Set with since
	survey bool      // the next full claim learns how far it looked
	step   bool      // so does the next other one, because what has been passed over since makes these slow as well
	fullAt time.Time // when the next full claim is due, while since is set
	// stirred: rows before since may have come to life.
	stirred   bool
	stirredAt time.Time // when to look for those at the earliest
	// wanted: a claim was made for something that may be among them.
	wanted   bool
	fullTook time.Duration // the last claim that set since
	// useless: nothing is passed over until then, or until a claim takes much longer than uselessTook.
	useless     time.Time
	uselessTook time.Duration

	inFlight struct {
		full, survey bool
		due, stirred bool // why it is full
		begun        time.Time
	}
}

// stir notes that rows that were passed over may have come to life.
func (s *scan) stir() { s.stirred = true }

// begin says where a claim that is made now begins, and whether it is to learn how far it looked.
func (s *scan) begin(now time.Time) (since []pg.Lane, others time.Time, survey bool) {
	f := &s.inFlight
	f.begun, f.stirred, f.due = now, s.stirred, s.since == nil || !s.fullAt.After(now)
	f.full = f.due || s.stirred && !s.stirredAt.After(now)
	if f.full {
		f.survey, s.stirred, s.wanted = f.due && s.survey, false, false
		return nil, time.Time{}, f.survey
	}
	f.survey = s.step
	return s.since, s.others, s.step
}

// passed is what other claims pass over while the one in flight does not.
func (s *scan) passed() Passed {
	if !s.inFlight.full {
		return Passed{}
	}
	return Passed{s.since, s.others}
}

// next is when a claim is to look for rows that were passed over and may have come to life; zero = none are known of, or
// whoever said so asks for a claim anyway.
func (s *scan) next() time.Time {
	switch {
	case s.since == nil || !s.stirred && !s.wanted:
		return time.Time{}
	case !s.stirred || s.fullAt.Before(s.stirredAt):
		return s.fullAt
	}
	return s.stirredAt
}

// failed takes a claim that brought an error. What it was made for still holds, but if it is its length that made it fail, the
// others come first.
func (s *scan) failed(now time.Time) {
	f := &s.inFlight
	if !f.full || s.since == nil {
		return
	}
	s.postpone(min(now.Sub(f.begun), 4*s.fullTook), now) // it may have hung, too
}

// postpone lets other claims come before the full one is made again.
func (s *scan) postpone(took time.Duration, now time.Time) {
	s.stirred, s.wanted = s.stirred || s.inFlight.stirred, true
	s.stirredAt = now.Add(4 * took)
	if s.inFlight.due {
		s.fullAt = now.Add(fullPause * took)
	}
}

// claimed takes what a claim came to.
func (s *scan) claimed(e *ClaimResult, asked int, now time.Time) {
	rows := len(e.Rows) + e.Pending
	if s.inFlight.full {
		s.stirredAt = time.Time{}
		if !s.inFlight.due && 2*e.Gained <= rows { // the others would have brought most of it, or there was nothing
			s.stirredAt = now.Add(4 * e.Took)
		}
		if !s.inFlight.due && !cameToEnd(e, asked) {
			s.stirred = true // there may be more
		}
	}
	its := time.Duration(rows) * perRow
	switch {
	case !s.inFlight.full:
		s.stepped(e, asked, its, now)
	case e.Took < slowClaim+its:
		if s.inFlight.survey {
			s.since, s.survey = nil, false
		} else if s.since != nil { // perhaps it has looked at nothing, because of a pause
			s.fullAt = now
		}
	case s.inFlight.survey && !e.At.IsZero():
		looked := e.At.Add(-lateCommit)
		s.since = make([]pg.Lane, len(e.Priorities))
		for i, p := range e.Priorities {
			s.since[i].Priority = p
		}
		s.since = lanes(s.since, e, asked, looked)
		s.others, s.fullAt, s.fullTook = looked, now.Add(max(fullEvery, fullPause*e.Took)), e.Took
	case s.since == nil:
		s.survey = s.useless.Before(now) || e.Took > 4*s.uselessTook
	case s.inFlight.survey: // it has lost a race, and says nothing of how far it has looked
		s.postpone(e.Took, now)
	}
}

// Passed is what claims pass over: rows of the lanes' priorities before their times, and of others before that of Others. The zero
// value is nothing.
type Passed struct {
	Lanes  []pg.Lane
	Others time.Time
}

// Among counts the rows that are.
func (p Passed) Among(rows []pg.Claimed) (n int) {
	for i := range rows {
		since := p.Others
		if l := slices.IndexFunc(p.Lanes, func(l pg.Lane) bool { return l.Priority == rows[i].Priority }); l >= 0 {
			since = p.Lanes[l].Since
		}
		if rows[i].EligibleAt.Before(since) {
			n++
		}
	}
	return n
}

// stepped takes what a claim came to that passed rows over; its rows may have taken so long.
func (s *scan) stepped(e *ClaimResult, asked int, its time.Duration, now time.Time) {
	if 2*(e.Took-its) > s.fullTook { // it is something else that takes the time
		s.since, s.survey, s.step = nil, false, false
		s.useless, s.uselessTook = now.Add(uselessFor), e.Took
		return
	}
	if s.inFlight.survey && !e.At.IsZero() && s.since != nil {
		looked := e.At.Add(-lateCommit)
		s.since = lanes(s.since, e, asked, looked)
		if cameToEnd(e, asked) && s.others.Before(looked) {
			s.others = looked
		}
	}
	s.step = e.Took >= (slowClaim+its)/slowStep
	s.wanted = true // what it was made for may be among those passed over
}

// cameToEnd reports whether a claim left nothing that it could have brought.
func cameToEnd(e *ClaimResult, asked int) bool {
	return max(len(e.Rows)+e.Pending, e.Looked) < asked
}

// lanes are where to begin after a claim that began at from and looked up to looked: behind what it found that nobody can run.
func lanes(from []pg.Lane, e *ClaimResult, asked int, looked time.Time) []pg.Lane {
	short := cameToEnd(e, asked)
	since := slices.Clone(from) // the claim may still be on its way that was given them
	for i, lane := range from {
		switch {
		case !short && lane.Priority > e.LastPriority:
			continue
		case !short && lane.Priority == e.LastPriority && e.LastEligible.Before(looked):
			since[i].Since = e.LastEligible
		case lane.Since.Before(looked):
			since[i].Since = looked
		}
	}
	return since
}
