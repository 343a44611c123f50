package gendurabletest

import (
	"fmt"
	"strings"

	"github.com/gendurable/gendurable"
)

// Outcome is what became of one step.
type Outcome string

// The outcomes of steps.
const (
	Next      Outcome = "next"       // it went on to another step
	Retried   Outcome = "retried"    // it runs again: Retry, or a job's error
	Parked    Outcome = "parked"     // it awaits signals
	FannedOut Outcome = "fanned out" // it scheduled children
	Done      Outcome = "done"
	Failed    Outcome = "failed"
	Cancelled Outcome = "cancelled" // a cancel was requested; whatever the step returned, the instance failed
	// Lost: the worker died, ended its goroutine, or ignored its timeout; the step runs again. CrashSteps does that, too.
	Lost Outcome = "lost"
	// Refused: the instance was failed instead of run: too many crashes or attempts, or a cancel that was requested.
	Refused Outcome = "refused"
	// Unknown: the Runner has no such machine, version or step, or the state does not fit its type. The instance stays.
	Unknown Outcome = "unknown"
)

// Step is one step that ran.
type Step struct {
	ID      gendurable.ID
	Machine string
	Version int
	Step    string
	Attempt int
	Outcome Outcome
	// To is the step that the instance went to, if it did.
	To string
	// Err is the error that the error handler got: of the step itself, a panic, a timeout, an outcome that was not allowed.
	Err error
}

// String is the step as one line of a log.
func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "instance %d: %s/%d %q", s.ID, s.Machine, s.Version, s.Step)
	if s.Attempt > 0 {
		fmt.Fprintf(&b, " (attempt %d)", s.Attempt)
	}
	fmt.Fprintf(&b, ": %s", s.Outcome)
	if s.To != "" {
		fmt.Fprintf(&b, ", to %q", s.To)
	}
	if s.Err != nil {
		fmt.Fprintf(&b, ": %v", s.Err)
	}
	return b.String()
}

// Tally counts steps by their outcome. Two tallies can be compared with ==.
type Tally struct {
	Next, Retried, Parked, FannedOut, Done, Failed, Cancelled, Lost, Refused, Unknown int
}

// Steps is how many steps ran: all but those that were Refused or Unknown.
func (t Tally) Steps() int {
	return t.Next + t.Retried + t.Parked + t.FannedOut + t.Done + t.Failed + t.Cancelled + t.Lost
}

// String names what is not zero.
func (t Tally) String() string {
	var parts []string
	for _, outcome := range []Outcome{Next, Retried, Parked, FannedOut, Done, Failed, Cancelled, Lost, Refused, Unknown} {
		if n := *t.of(outcome); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, outcome))
		}
	}
	if len(parts) == 0 {
		return "nothing ran"
	}
	return strings.Join(parts, ", ")
}

func (t *Tally) of(o Outcome) *int {
	switch o {
	case Next:
		return &t.Next
	case Retried:
		return &t.Retried
	case Parked:
		return &t.Parked
	case FannedOut:
		return &t.FannedOut
	case Done:
		return &t.Done
	case Failed:
		return &t.Failed
	case Cancelled:
		return &t.Cancelled
	case Lost:
		return &t.Lost
	case Refused:
		return &t.Refused
	}
	return &t.Unknown
}
