package fsm

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// Definition is a machine or a job that an engine can run: a *Machine[S] or a *Job[A, R].
// It is immutable once an engine was started with it, and safe for concurrent use.
type Definition interface {
	// Spec describes the definition to an engine. Authors of machines never call it.
	Spec() *Spec
}

// Spec is what an engine needs to know of a definition. It is read-only.
type Spec struct {
	// Name and Version identify the machine; rows carry both.
	Name    string
	Version int
	// Initial is the step in which a new instance starts.
	Initial string
	// Queue is where its instances run unless an insert says otherwise.
	Queue string
	// Job tells a one-function job from a machine.
	Job bool
	// MaxAttempts is the number of runs after which a job fails; 0 for a machine (no limit).
	MaxAttempts int
	// MaxCrashes is how often in a row one step may take its worker down before the instance is
	// failed instead of run; 0 = never.
	MaxCrashes int
	// History says that each transition is written into the instance's history.
	History bool
	// RateLimits are the names (without partitions) of all rate limits the definition is declared with, so that a limit that is
	// used but not configured is found at start.
	RateLimits []string
	// Problems are the mistakes found while the definition was built; Start refuses a definition that has any.
	Problems []error

	steps    map[string]*stepSpec
	defaults Insertion // what an insert without options gets; its state is unset
	limit    *rateLimit
	inline   bool // every Next asks to go on in the same task
	// open decodes the state of an input for a step; the engine's side of a call.
	open func(*Spec, *Input) (view, error)
	// handle is the error handler.
	handle func(ctx context.Context, call view, err error) (Outcome, error)
}

// HasStep reports whether the definition knows the step.
func (s *Spec) HasStep(step string) bool {
	_, ok := s.steps[step]
	return ok
}

// StepNames lists the steps, sorted.
func (s *Spec) StepNames() []string { return slices.Sorted(maps.Keys(s.steps)) }

// stepSpec is one step as the runner sees it, its type parameters erased.
type stepSpec struct {
	name    string
	timeout time.Duration // 0 = none
	to      []string      // the declared targets; nil = any step of the machine
	call    func(ctx context.Context, call view) (Outcome, error)
}

// view is a *Call[S] or a *JobCall[A] as the runner sees it.
type view interface {
	// encodeState encodes what the code left of the state.
	encodeState(*Limits) ([]byte, error)
	// handedIDs are the awaited signals that the code has seen.
	handedIDs() []int64
	// withoutSignals empties the signal views for an error handler; the ids that the step was handed before
	// stay the run's, so that the handler's progress consumes them and its await does not wake on them.
	withoutSignals(handed []int64)
}

// Status is where an instance stands in its life; the values are the labels of the database's enum.
type Status string

// The statuses of an instance. Done and Failed are terminal.
const (
	Runnable         Status = "runnable"
	Executing        Status = "executing"
	AwaitingSignal   Status = "awaiting_signal"
	AwaitingChildren Status = "awaiting_children"
	StatusDone       Status = "done"
	StatusFailed     Status = "failed"
)

// Terminal reports whether the status is done or failed.
func (s Status) Terminal() bool { return s == StatusDone || s == StatusFailed }

// Input is one run of a step: what an engine hands to Run.
type Input struct {
	ID             int64
	Step           string
	Attempt        int
	State          []byte // the JSON object as loaded; Run never changes it
	Queue          string
	CorrelationKey string
	ParentID       int64 // 0 = none
	// Awaits are the names the instance parked on if an await led to this step.
	Awaits []string
	// Inbox is what waits for the instance, oldest first, those named in Awaits before the others when
	// there are more than the engine hands over at once; MoreInbox says that there are more.
	Inbox     []Signal
	MoreInbox bool
	// Children are the children still in the database, oldest first; MoreChildren says that there are more.
	Children     []Child
	MoreChildren bool
	ChildCounts  map[Status]int64
	// Pages reads what did not fit; nil when there is nothing more.
	Pages Pages
	// Limits are the engine's limits on what a step may produce.
	Limits Limits
	// Grace is how long a step may run on after its timeout before Run returns without it. 0 = 30 s.
	Grace time.Duration
	// Abandon, when closed, makes Run return Abandoned at once, leaving the step's goroutine behind. May be nil.
	Abandon <-chan struct{}
}

// Pages reads the signals and children that did not fit into an Input.
// The engine implements it; it is used from the step's goroutine only.
type Pages interface {
	// Signals returns the next inbox rows that were not handed over yet, oldest first; none = no more.
	Signals(ctx context.Context, id int64, handed []int64) ([]Signal, error)
	// Children returns children with an id above after, in id order; none = no more.
	Children(ctx context.Context, id, after int64) ([]Child, error)
}

// Limits bound what enters the database. The zero value means the defaults.
type Limits struct {
	// MaxPayload is the largest encoded state, result or signal payload in bytes, before the Codec; 0 = 1 MiB.
	// More than 16 MiB counts as 16 MiB.
	MaxPayload int
	// Interoperable refuses states, results and payloads that are not JSON objects.
	Interoperable bool
	// Codec is what states, results and signal payloads are stored through; nil = as they are.
	Codec Codec
	// CheckRateLimit refuses an undeclared rate limit or a weight above its burst; nil = any name goes. It gets
	// the name without the partition.
	CheckRateLimit func(name string, weight float64) error
	// CheckInsertion refuses a child of a machine, step or queue that this engine does not know; nil = anything goes.
	CheckInsertion func(Insertion) error
}

// Ending says how a run of a step ended.
type Ending int

// The endings of a run.
const (
	// Finished: Result.Encoded is the outcome to commit.
	Finished Ending = iota
	// Vanished: the step's goroutine ended without an outcome (runtime.Goexit); its lease runs out.
	Vanished
	// Abandoned: the step ignored its timeout and the grace, or Abandon closed; it may still be running.
	Abandoned
	// Undecodable: the state does not decode into this definition's type, or the Codec fails on what goes into the step or
	// comes out of it; the claim goes back untouched.
	Undecodable
)

// Result is what came of one run of a step.
type Result struct {
	Ending  Ending
	Encoded *Encoded // non-nil exactly when Ending is Finished
	// Err is why, when Ending is Undecodable. When it is Finished, the error that the outcome answers (the
	// step's own, a *PanicError, ErrStepTimeout, an invalid outcome), nil when the step simply returned.
	Err error
	// Left is closed when the goroutine of an abandoned step has ended; nil otherwise.
	Left <-chan struct{}
}

// Kind names an outcome.
type Kind string

// The kinds of outcomes.
const (
	KindNext     Kind = "next"
	KindRetry    Kind = "retry"
	KindAwait    Kind = "await"
	KindChildren Kind = "children"
	KindDone     Kind = "done"
	KindStop     Kind = "stop"
)

// KeyChange says what a transition does to the instance's concurrency key.
type KeyChange int

// The changes of a concurrency key.
const (
	KeepKey KeyChange = iota
	ReleaseKey
	SetKey
)

// Encoded is an outcome, validated and encoded: everything the database needs and nothing it would refuse.
type Encoded struct {
	Kind Kind
	// Step is the step the instance goes to; its own for KindRetry; empty for KindDone and KindStop.
	Step string
	// State is the new state, a JSON object; nil for KindDone and KindStop, which keep the stored one.
	State []byte
	// Delay is how long after the commit the instance becomes eligible (KindNext, KindRetry).
	Delay time.Duration
	// Inline asks the engine to run the next step in the same task once this one is committed (KindNext). Whether it
	// does is the engine's choice; it changes nothing but the speed. Invariant: never with a Delay.
	Inline bool
	// Uncounted keeps attempt as it is (KindRetry of a snoozed job).
	Uncounted bool
	Result    json.RawMessage // KindDone
	// Error is the cleaned text for last_error: of KindStop, or of the error that led to a KindRetry.
	Error string
	// Awaits and Timeout belong to KindAwait; Timeout 0 = none.
	Awaits  []string
	Timeout time.Duration
	// RateLimit and Weight are those of the next step (KindNext); empty = none.
	RateLimit string
	Weight    float64
	Key       KeyChange
	NewKey    string // with SetKey
	Children  []Insertion
	// Work is what is to be committed together with the outcome, see Together; nil = nothing. WorkTimeout bounds it,
	// 0 = the engine's default. Invariant: never with Inline.
	Work        any
	WorkTimeout time.Duration
	// Handed are the ids of the awaited signals that this run was handed (or read in pages): deleted by
	// KindNext and KindChildren, ignored by the recheck of KindAwait.
	Handed []int64
}

// Insertion is an instance to insert, validated and encoded.
type Insertion struct {
	Machine          string
	Version          int
	Step             string
	State            []byte // a JSON object
	Queue            string
	Priority         int16
	CorrelationKey   string   // empty = none
	CorrelationScope []string // statuses in which the key is occupied; nil = no uniqueness
	ConcurrencyKey   string   // empty = none
	RateLimit        string   // empty = none
	Weight           float64  // 0 = 1
	// EligibleAt is an absolute time, zero = now; Delay is added to the database's now() when EligibleAt is zero.
	EligibleAt time.Time
	Delay      time.Duration
	RequestID  string // empty = none; never set on children
	// TraceContext is the W3C traceparent of the span that the first step belongs to; empty = none. The engine sets it.
	TraceContext string
}
