package actors

import (
	"context"
	"time"

	"github.com/gendurable/gendurable/pg"
)

// Telemetry is told what counters cannot say: how long something took, how many there were at once, and which step belongs
// to which trace. Nil means that nobody listens; then nothing is measured for it, and nothing allocated. The engine hands in
// an implementation that knows a telemetry library, so that no actor has to. All methods are called from many goroutines
// and must neither block nor keep what they get.
type Telemetry interface {
	// StepBegins opens the span of a step. The step's code gets the context returned, which carries it.
	StepBegins(ctx context.Context, row *pg.Claimed) (context.Context, StepSpan)
	// Claimed tells of a claim that succeeded, and of its rows (perhaps none).
	Claimed(queue string, rows []pg.Claimed, took time.Duration)
	// Flushed tells of a flush that was committed.
	Flushed(outcomes int, took time.Duration)
}

// StepSpan is the span of one step, from the start of its code until its outcome is durable or given up. It belongs to the
// step's goroutine.
type StepSpan interface {
	// TraceContext is the span as a W3C traceparent. keep says that the instance's row must learn of it: not if nobody
	// records the trace and the row says so already.
	TraceContext() (traceparent string, keep bool)
	// Ended ends the span; it is called once.
	Ended(StepReport)
}

// StepReport is what came of a step.
type StepReport struct {
	// Outcome is what its code came to ("next", "stop" and so on, fsm's names); empty = nothing that could be committed.
	Outcome string
	// End is "continued" for a step whose row went on to its next one in the same task, else StepEnd's name.
	End string
	// Error is that of a Stop or of a Retry after an error; empty = none.
	Error string
	// Ran is how long the code ran, Children how many it asked for.
	Ran      time.Duration
	Children int
}

// EndContinued is the StepReport.End of a step whose row went on to its next one in the same task.
const EndContinued = "continued"

// String is the end as telemetry names it.
func (e StepEnd) String() string {
	switch e {
	case EndCommitted:
		return "committed"
	case EndStale:
		return "stale"
	case EndVanished:
		return "vanished"
	case EndAbandoned:
		return "abandoned"
	case EndUnknown:
		return "unknown"
	}
	return EndContinued
}
