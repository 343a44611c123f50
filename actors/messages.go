package actors

import (
	"errors"
	"time"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// ErrRestarting is answered to waiters of an actor that is being restarted: ask again.
var ErrRestarting = errors.New("gendurable: the actor is restarting, ask again")

// ErrStopped is answered to waiters of an actor that stops for good.
var ErrStopped = errors.New("gendurable: the engine has stopped")

// RefusedError says that the database refused the content of one outcome; nothing of it was written and the
// row is still owned.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string {
	return "gendurable: the database refused the outcome: " + e.Err.Error()
}

// Unwrap returns the database's error.
func (e *RefusedError) Unwrap() error { return e.Err }

// Commit asks a flusher to make one outcome durable. Sender: a step actor.
type Commit struct {
	Outcome pg.Outcome
	// Queue is where the row runs; its own scheduler learns of requeued work by it.
	Queue string
	// Gone is closed when nobody waits any more (lease lost, engine stopped): the entry may be dropped if it
	// was not sent to the database yet. May be nil.
	Gone <-chan struct{}
	// Reply receives exactly one answer. Invariant: capacity 1, so that the flusher never blocks.
	Reply chan<- Committed
}

// Committed answers a Commit.
type Committed struct {
	Verdict pg.Verdict
	// Next has what the next step of a continued row sees of its inbox and children; nil = nothing.
	Next *pg.Claimed
	// Err is nil when Verdict holds; *RefusedError; ErrRestarting; ErrStopped.
	Err error
}

// Announce tells the poke actor that queues have runnable work. Senders: flusher, reaper, node, Insert, Signal.
type Announce struct {
	Queues []string
	// In is how far in the future the work becomes eligible; 0 = now.
	In time.Duration
}

// Poke tells a scheduler that its queue has (or in In will have) runnable work. It is a hint.
type Poke struct {
	Queue string
	In    time.Duration
}

// Settlements tells the await actor which instances settled in a local commit (done, failed, parked). Sender: flusher.
type Settlements struct{ Settled []pg.Settled }

// AwaitInstance registers a waiter with the await actor. Sender: Engine.Await, Client.Await.
type AwaitInstance struct {
	ID int64
	// UntilTerminal waits on when the instance parks.
	UntilTerminal bool
	// Done is closed when the caller gave up.
	Done <-chan struct{}
	// Reply receives at most one answer. Invariant: capacity 1.
	Reply chan<- AwaitReply
}

// AnsweredBy reports whether a status is an answer for this caller. The empty one means that there is no such instance.
// A parent that waits for its children goes on by itself, so it has not settled.
func (m *AwaitInstance) AnsweredBy(s pg.Status) bool {
	switch s {
	case pg.Done, pg.Failed, "":
		return true
	case pg.AwaitingSignal:
		return !m.UntilTerminal
	default:
		return false
	}
}

// AwaitReply answers AwaitInstance. Settled.Status is empty when there is no such instance.
type AwaitReply struct {
	Settled pg.Settled
	Err     error // ErrStopped; ErrRestarting: register again
}

// RunSteps hands claimed rows to the steps actor, which gives each to a step actor. Sender: scheduler.
type RunSteps struct{ Steps []RunStep }

// RunStep is one row of RunSteps.
type RunStep struct {
	Claimed *pg.Claimed
	Spec    *fsm.Spec
}

// StepsEnded says that step actors are through with rows. step → steps → scheduler: each of the two hears of what has come
// together by one message.
type StepsEnded struct{ Ended []StepEnded }

// StepEnded is one row of StepsEnded.
type StepEnded struct {
	ID    int64
	Claim int // the number of the claim that the run was of
	End   StepEnd
	// Delay is the requeue's delay when End is EndCommitted and the row is runnable again; negative = it is not.
	Delay time.Duration
	// Took is how long the slot was held. Longest is the longest time for which the run kept it without being ready to give it up in
	// between: for a step, or for several of a chain; 0 when none ran.
	Took, Longest time.Duration
	// Step names the step to leave out of claims when End is EndUnknown.
	Step pg.StepRef
	// Denied says why when End is EndDenied.
	Denied limiter.Decision
}

// StepEnd is how a step's run ended for its scheduler.
type StepEnd int

// The ends of a step.
const (
	// EndCommitted: its outcome is durable, or the row was cancelled.
	EndCommitted StepEnd = iota
	// EndStale: the row was lost; its outcome was dropped.
	EndStale
	// EndVanished: no outcome (Goexit); the row is left to its lease.
	EndVanished
	// EndAbandoned: the step ignored its timeout or the drain; the row is left to its lease.
	EndAbandoned
	// EndUnknown: this process cannot run the step, or cannot decode its state: give the claim back.
	EndUnknown
	// EndDenied: a limit has nothing left for the next step of an inline chain: give the claim back.
	EndDenied
	// EndCrowded: there is no slot for the next step of an inline chain: give the claim back.
	EndCrowded
)

// CancelStep cancels the context of a running step. scheduler → steps → step.
type CancelStep struct {
	ID    int64
	Cause error // fsm.ErrLeaseLost, fsm.ErrCancelled, fsm.ErrDraining
}

// CancelRequested tells a queue's scheduler that a cancel was requested for an instance that may run here.
// Sender: Engine.Cancel. A hint: the heartbeat finds the request too.
type CancelRequested struct {
	ID     int64
	Claim  int // the claim that is to end; 0 = whichever holds the row
	Reason string
}

// CancelsRequested tells a queue's scheduler of many of them at once, so that what another node says of many costs one message.
type CancelsRequested struct{ Cancels []CancelRequested }

// ListRunning asks the steps actor what runs (a restarted scheduler does). It answers with Running. Life is the asking scheduler's: an
// answer to an earlier one may be older than what that one has done since.
type ListRunning struct{ Life int64 }

// Running answers ListRunning. Committing are those of the IDs whose outcome is in the hands of a flusher: it may be committed
// already. Life is that of the question.
type Running struct {
	IDs, Committing []int64
	Life            int64
}

// Drain stops claiming, releases what is buffered, lets running steps finish until Timeout, then cancels their
// contexts and leaves what still runs to the lease. root → queue → scheduler. The scheduler answers by closing Done.
type Drain struct {
	Timeout time.Duration
	Done    chan<- struct{}
}

// Flush asks a flusher to write what it holds and to end: what came before is committed (or answered with an
// error when Timeout passes first), what comes later is answered with ErrStopped. root → flusher. The flusher
// answers by closing Done.
type Flush struct {
	Timeout time.Duration
	Done    chan<- struct{}
}

// Crash makes whichever actor gets it panic, as a bug would. Fault-injection tests send it; nothing else does.
type Crash struct{ Quiet }

// String is what the panic says.
func (Crash) String() string { return "crashed on purpose" }
