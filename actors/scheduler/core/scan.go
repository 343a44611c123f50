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
	stirredAt time.Time     // when to look for those at the earliest
	fullTook  time.Duration // the last claim that set since
	useless   time.Time     // nothing is passed over until then

	inFlight struct{ full, survey bool }
}

// stir notes that rows that were passed over may have come to life.
func (s *scan) stir() { s.stirred = true }

// begin says where a claim that is made now begins, and whether it is to learn how far it looked.
func (s *scan) begin(now time.Time) (since []pg.Lane, others time.Time, survey bool) {
	due := s.since == nil || !s.fullAt.After(now)
	s.inFlight.full = due || s.stirred && !s.stirredAt.After(now)
	if s.inFlight.full {
		s.inFlight.survey, s.stirred = due && s.survey, false
		return nil, time.Time{}, s.inFlight.survey
	}
	s.inFlight.survey = s.step
	return s.since, s.others, s.step
}

// next is when a claim is to look for rows that were passed over and may have come to life; zero = none are known of, or
// whoever said so asks for a claim anyway.
func (s *scan) next() time.Time {
	switch {
	case !s.stirred || s.since == nil:
		return time.Time{}
	case s.fullAt.Before(s.stirredAt):
		return s.fullAt
	}
	return s.stirredAt
}

// claimed takes what a claim came to.
func (s *scan) claimed(e *ClaimResult, asked int, now time.Time) {
	rows := len(e.Rows) + e.Pending
	if s.inFlight.full {
		s.stirredAt = time.Time{}
	}
	slow := e.Took-time.Duration(rows)*perRow >= slowClaim
	switch {
	case !s.inFlight.full:
		s.stepped(e, asked, slow, now)
	case !slow:
		if s.inFlight.survey {
			s.since, s.survey = nil, false
		}
	case s.inFlight.survey && !e.At.IsZero():
		looked := e.At.Add(-lateCommit)
		s.since = make([]pg.Lane, len(e.Priorities))
		for i, p := range e.Priorities {
			s.since[i].Priority = p
		}
		s.since = lanes(s.since, e, asked, looked)
		s.others, s.fullAt, s.fullTook = looked, now.Add(max(fullEvery, fullPause*e.Took)), e.Took
	default:
		s.survey = s.useless.Before(now)
		if rows == 0 { // in vain
			s.stirredAt = now.Add(4 * e.Took)
		}
	}
}

// stepped takes what a claim came to that passed rows over.
func (s *scan) stepped(e *ClaimResult, asked int, slow bool, now time.Time) {
	if 2*e.Took > s.fullTook { // it is something else that takes the time
		s.since, s.survey, s.step, s.useless = nil, false, false, now.Add(uselessFor)
		return
	}
	if s.inFlight.survey && !e.At.IsZero() && s.since != nil {
		s.since = lanes(s.since, e, asked, e.At.Add(-lateCommit))
	}
	s.step = slow
	if !s.stirred {
		s.stirred, s.stirredAt = true, s.fullAt // what it was made for may be among those passed over
	}
}

// lanes are where to begin after a claim that began at from and looked up to looked: behind what it found that nobody can run.
func lanes(from []pg.Lane, e *ClaimResult, asked int, looked time.Time) []pg.Lane {
	short := max(len(e.Rows)+e.Pending, e.Looked) < asked
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
