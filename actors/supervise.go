package actors

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// Supervision says how a parent treats children that panic. The zero value of each field means its default.
type Supervision struct {
	// First is the pause before the first restart; each further failure within Within doubles it, up to Max.
	// Default 10 ms and 5 s.
	First, Max time.Duration
	// Failures is how many failures of one child within Within are followed by a restart; the next one gives
	// the child up. Default 10 in a minute.
	Failures int
	Within   time.Duration
	// Logger gets one line a restart and one when a child is given up. Default slog.Default().
	Logger *slog.Logger
	// Counters counts restarts. May be nil.
	Counters *Counters
	// GiveUp is called on a goroutine of its own after a child was given up and told to stop. An engine without
	// one of its actors would wait for ever in silence, so it is expected to stop the engine. May be nil.
	GiveUp func(child *actor.PID, reason any)
}

// NewSupervisor makes the strategy for actor.WithSupervisor. It restarts the failing child alone.
//
// The restart is carried out on the parent's own goroutine: RestartChildren itself touches none of the parent's
// state, but a restart that a timer sends to a child that was told to stop meanwhile revives it, and its
// parent waits for its end for ever. Hence the timer sends a message to the parent, whose guard (see NewProps)
// looks whether the child is still its child. A supervisor that is not an actor of NewProps (the library's
// guardian of root actors) restarts from the timer. Stop a child through its parent's stop where possible.
func NewSupervisor(s Supervision) actor.SupervisorStrategy {
	if s.First <= 0 {
		s.First = 10 * time.Millisecond
	}
	if s.Max <= 0 {
		s.Max = 5 * time.Second
	}
	if s.Failures <= 0 {
		s.Failures = 10
	}
	if s.Within <= 0 {
		s.Within = time.Minute
	}
	if s.Logger == nil {
		s.Logger = slog.Default()
	}
	if s.Counters == nil {
		s.Counters = new(Counters)
	}
	return &supervisor{s}
}

type supervisor struct{ Supervision }

// restartChild tells a parent's guard that the pause before a child's restart is over.
type restartChild struct {
	Quiet
	child *actor.PID
}

// remembered bounds the list of failure times that the library keeps for each child.
const remembered = 1000

// HandleFailure implements actor.SupervisorStrategy; it runs on the parent's mailbox goroutine.
func (s *supervisor) HandleFailure(system *actor.ActorSystem, parent actor.Supervisor, child *actor.PID,
	failures *actor.RestartStatistics, reason any, _ any) {
	if failures.NumberOfFailures(s.Within) == 0 || failures.FailureCount() >= remembered {
		failures.Reset()
	}
	failures.Fail()
	n := failures.NumberOfFailures(s.Within)
	if n > s.Failures {
		s.Logger.Error("gendurable: an actor keeps failing and is given up",
			"actor", child.GetId(), "failures", n, "within", s.Within, "reason", fmt.Sprint(reason))
		parent.StopChildren(child)
		if s.GiveUp != nil {
			go s.GiveUp(child, reason)
		}
		return
	}
	pause := s.pause(n)
	s.Counters.Restarts.Add(1)
	s.Logger.Warn("gendurable: an actor failed and is restarted",
		"actor", child.GetId(), "failures", n, "in", pause, "reason", fmt.Sprint(reason))
	restart := func() { parent.RestartChildren(child) }
	if p, ok := parent.(interface{ Self() *actor.PID }); ok && p.Self() != nil {
		self := p.Self()
		restart = func() { system.Root.Send(self, restartChild{child: child}) }
	}
	time.AfterFunc(pause, restart)
}

// pause is the time before the restart that follows the n-th failure, n from 1.
func (s *supervisor) pause(n int) time.Duration {
	d := s.First
	for i := 1; i < n && d < s.Max; i++ {
		d *= 2
	}
	return min(d, s.Max)
}
