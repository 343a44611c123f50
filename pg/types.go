package pg

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB runs statements: a *pgxpool.Pool, a *pgx.Conn or a caller's pgx.Tx.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Status is a label of the durable_status enum.
type Status string

// The labels, in the order of the enum.
const (
	Runnable         Status = "runnable"
	Executing        Status = "executing"
	AwaitingSignal   Status = "awaiting_signal"
	AwaitingChildren Status = "awaiting_children"
	Done             Status = "done"
	Failed           Status = "failed"
)

// Insertion is a row to insert. Its fields are those of fsm.Insertion, so that one converts to the other.
type Insertion struct {
	Machine          string
	Version          int
	Step             string
	State            []byte
	Queue            string
	Priority         int16
	CorrelationKey   string
	CorrelationScope []string
	ConcurrencyKey   string
	RateLimit        string
	Weight           float64 // 0 = 1
	EligibleAt       time.Time
	Delay            time.Duration
	RequestID        string
	TraceContext     string
}

// Inserted answers one Insertion.
type Inserted struct {
	// ID is the new row; of a duplicate the occupant of the correlation key (0 when it ended meanwhile); of a
	// repeated RequestID the first row (0 in the rare case that it was forgotten meanwhile).
	ID        int64
	Duplicate bool // the correlation key is occupied; nothing was inserted
	Repeated  bool // the RequestID was seen before; nothing was inserted
}

// Delivery is a signal to deliver: to the instance ID, or when ID is 0 to the live occupant of Key.
type Delivery struct {
	ID       int64
	Key      string
	Name     string
	Payload  []byte // JSON
	DedupKey string // empty = none
	// TraceContext is where a trace goes on from this signal: a W3C traceparent; empty = none.
	TraceContext string
}

// Delivered answers one Delivery.
type Delivered struct {
	TargetID  int64 // 0 = refused: unknown, freed or terminal target; nothing was stored
	SignalID  int64 // 0 when refused or duplicate
	Duplicate bool  // the dedup key was accepted before
	Woken     bool  // this batch woke the parked target
	Queue     string
}

// StepRef names a step of a machine version.
type StepRef struct {
	Machine string
	Version int
	Step    string
}

// ClaimRequest asks for runnable rows of one queue.
type ClaimRequest struct {
	Queue  string
	Worker string        // the claim identity written to locked_by
	Lease  time.Duration // from the database's now()
	Limit  int
	// Skip are the steps this process cannot run: left out of the claim.
	Skip []StepRef
	// Limits say which gates there are, and what to leave out because its limit is exhausted. Nil: no gates.
	Limits *ClaimLimits
	// Since restricts the claim in these priorities, ascending, to rows that are eligible since then, and in all others to those
	// eligible since Others; its zero time leaves the others out. Nil: the claim looks everywhere, whatever Others says.
	Since  []Lane
	Others time.Time
	// Report is filled in, when it is not nil.
	Report *ClaimReport
	// Contended, if not nil, is advanced with each try that lost the race for a concurrency key.
	Contended *atomic.Int64
}

// Claimed is a row that this worker owns until its lease ends.
type Claimed struct {
	ID               int64
	Machine          string
	Version          int
	Step             string
	State            []byte
	Attempt          int
	Awaits           []string
	Queue            string
	Priority         int16
	EligibleAt       time.Time
	ConcurrencyKey   string
	ConcurrencyShard *int16
	RateLimit        string
	Weight           float64
	CorrelationKey   string
	ParentID         int64 // 0 = none
	// Claim numbers the claims of this row; its outcome carries the number back. Positive.
	Claim int
	// Crashes counts how often in a row this very step took its worker down.
	Crashes int
	// CancelReason is non-nil when a cancel was requested: the row must be ended, not run.
	CancelReason *string
	// HasInbox and HasChildren say that there may be some; they select the enrichment and the riders.
	HasInbox    bool
	HasChildren bool
	// TraceContext is the W3C traceparent of the span before: the last step's, or the insert's. Empty = none.
	TraceContext string
	// Waited is how long the row had been eligible when it was claimed, by the database's clock. Never negative.
	Waited time.Duration

	// Inbox: at most 1,000, the awaited names first when there are more, then oldest first.
	Inbox        []Signal
	MoreInbox    bool
	Children     []Child // at most 1,000, in id order
	MoreChildren bool
	ChildCounts  map[Status]int64
}

// Signal is a row of an inbox.
type Signal struct {
	ID         int64
	Name       string
	Payload    []byte
	InsertedAt time.Time
	// TraceContext is that of its Delivery; only of signals that a claim or Enrich hands over.
	TraceContext string `db:"-"`
}

// Child is a child as its parent sees it.
type Child struct {
	ID             int64
	Machine        string
	Status         Status
	CorrelationKey string
	State          []byte
	Result         []byte
	Error          string
	// TraceContext is that of its last step, or of its insert; only of children that a claim or Enrich hands over.
	TraceContext string `db:"-"`
}

// Kind is what an Outcome does to its row.
type Kind int

// The kinds of outcomes.
const (
	KindNext Kind = iota
	KindRetry
	KindAwait
	KindChildren
	// KindContinue is a Next whose row stays executing under the same claim: the worker runs the next step itself.
	KindContinue
	KindDone
	KindFailed
)

// KeyChange says what an outcome does to the concurrency key. The values are those of fsm.KeyChange.
type KeyChange int

// The changes of a concurrency key.
const (
	KeepKey KeyChange = iota
	ReleaseKey
	SetKey
)

// Outcome is what a step came to, to be committed for a row that Worker owns.
type Outcome struct {
	ID     int64
	Worker string
	Kind   Kind

	Step      string        // KindNext, KindAwait, KindChildren, KindContinue: the step it goes to
	State     []byte        // KindNext, KindRetry, KindAwait, KindChildren, KindContinue
	Delay     time.Duration // KindNext, KindRetry
	Uncounted bool          // KindRetry: attempt stays
	Result    []byte        // KindDone; nil = SQL NULL
	Error     string        // KindFailed; KindRetry after an error (empty: last_error stays)
	Awaits    []string      // KindAwait
	Timeout   time.Duration // KindAwait; 0 = none
	RateLimit string        // KindNext, KindContinue
	Weight    float64       // KindNext, KindContinue; 0 = 1
	Key       KeyChange     // KindNext; KindContinue, which may set only the key of a gate (see ProvisionalShard)
	NewKey    string        // KindNext, KindContinue with SetKey
	Handed    []int64       // consumed by KindNext, KindContinue and KindChildren, ignored by the recheck of KindAwait
	Children  []Insertion   // KindChildren

	// Claim is the number of the claim that the outcome belongs to: a worker that lost its row and got it back must not
	// commit what it had made of the first claim. 0 = any claim of Worker.
	Claim int
	// What the claim said of the row; it selects the riders.
	ParentID int64
	HasInbox bool
	// SlotKey is the key of the gate of which the row holds a slot, empty = none, and SlotShard the slot. The flush gives it
	// up, unless it continues the row and keeps the key; see Verdict.Mark.
	SlotKey   string
	SlotShard int16

	// TraceContext is the traceparent of the span of the step; empty leaves the row's as it is. KindContinue does not
	// write it: the next step runs in this process, which knows it.
	TraceContext string
	// Record, if not nil, has the transition written into the instance's history.
	Record *Record
}

// Fate is what became of an Outcome.
type Fate int

// The fates of an outcome.
const (
	// Committed: it is durable.
	Committed Fate = iota
	// Stale: the worker no longer owned the row; nothing of it was written.
	Stale
	// Cancelled: a cancel had been requested; the row was failed with its reason instead.
	Cancelled
)

// Verdict answers one Outcome.
type Verdict struct {
	ID   int64
	Fate Fate
	// Status is the row's status after the flush (runnable for an await whose recheck woke it at once). It is executing
	// exactly when the row was continued and its worker may run the next step.
	Status Status
	// HasInbox and HasChildren say of a continued row that the next step may have signals or children to see; see Enrich.
	HasInbox, HasChildren bool
	// Children is how many children were really inserted.
	Children int
	// Mark is the id of the transaction, if in its flush an outcome gave up a slot: what a limiter.Release of that slot
	// carries. 0 = none did, or it is not known.
	Mark uint64
	// Assumed: the connection was lost at COMMIT and the flush turned out to be committed, so that Status is
	// what the outcome asked for, not what was read back.
	Assumed bool
}

// Flushed is what a committed flush did.
type Flushed struct {
	Verdicts []Verdict // in the order of the outcomes
	// Woken are the queues that got runnable rows, without duplicates: joined parents, children, rechecked
	// awaits, requeued steps without a delay. Also those of continued rows that released their key.
	Woken []string
}

// Beat answers one id of a heartbeat.
type Beat struct {
	ID    int64
	State BeatState
	// CancelReason is non-nil when a cancel was requested for a row that is still ours.
	CancelReason *string
}

// BeatState is what a heartbeat found.
type BeatState int

// The states a heartbeat finds.
const (
	Extended BeatState = iota
	// Locked: somebody holds the row's lock just now; it is still ours. Extend it alone if that happens twice.
	Locked
	// Lost: another owner, or not executing any more.
	Lost
)

// Settled is where an instance stands, for callers of Await.
type Settled struct {
	ID     int64
	Status Status // empty = no such instance
	Result []byte // done
	Error  string // failed
	Awaits []string
}

// Instance is a row as operators and callers of Get see it.
type Instance struct {
	ID               int64
	Machine          string
	Version          int
	Step             string
	Status           Status
	State            []byte
	Result           []byte
	LastError        string
	Queue            string
	Priority         int16
	Attempt          int
	Crashes          int
	Awaits           []string
	AwaitDeadline    *time.Time
	EligibleAt       time.Time
	ConcurrencyKey   string
	RateLimit        string
	Weight           float64
	CorrelationKey   string
	CorrelationScope []string
	ParentID         int64
	ChildrenPending  int
	LockedBy         string
	LeaseExpiresAt   *time.Time
	CancelReason     *string
	InsertedAt       time.Time
	UpdatedAt        time.Time
}

// Cancellation is what a cancel came to.
type Cancellation int

// The results of a cancel.
const (
	NoSuchInstance Cancellation = iota
	AlreadyTerminal
	Ended     // it was not executing and is failed now
	Requested // it is executing; its worker ends it
)

// CancelResult answers a Cancel.
type CancelResult struct {
	ID     int64
	Result Cancellation
	Queue  string   // of the instance
	Claim  int      // the number of its last claim; with Requested that of the one that holds it
	Woken  []string // queues of parents that this woke
}

// Node is a row of gen_durable_nodes.
type Node struct {
	Engine      string
	Name        string // Invariant: contains no '@'
	Incarnation string // Invariant: 16 lower-case hex digits
	Named       bool   // the name was given by the user and is kept across restarts
	Address     string
	Queues      []string
	Machines    []string // "name/version"
	Steps       []string // "name/version/step", of those machines
	// Unfit are the steps, in that form, that the node leaves out of its claims because it cannot read their states.
	Unfit []string
	// SilentAfter is how long after a beat the node still counts as alive. 0 = a minute.
	SilentAfter time.Duration
	StartedAt   time.Time
	BeatAt      time.Time
}
