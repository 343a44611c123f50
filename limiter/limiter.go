package limiter

import (
	"context"
	"errors"
	"time"
)

// ErrUncertain says that a call may have been carried out, or not: the answer was lost. An Admit that ends so is
// followed by giving back the claims, which also gives back slots that were taken; a Credit that ends so must not be
// repeated (the same slots might be freed twice), but be followed by a Reconcile.
var ErrUncertain = errors.New("limiter: the answer was lost; it is not known whether the call was carried out")

// ErrContended says that a call lost one race after the other, or waited in vain for what others hold, and did nothing. The same
// again succeeds some time.
var ErrContended = errors.New("limiter: too many others ask for the same keys just now; ask again")

// Limiter counts rates and gates. Its methods are safe for concurrent use, by any number of processes.
//
// An error means that nothing was done, unless it wraps ErrUncertain.
type Limiter interface {
	// SyncConfig stores the limits given and returns all that are in force, whoever stored them. It leaves other
	// limits as they are, so that with an empty Config it only reads. A limit of the same name is replaced: of two
	// processes that disagree the last one wins, for both. An invalid Config is refused whole (see Config.Validate).
	//
	// A lowered limit binds from the next Admit on. A raised one, and a changed number of shards, may take effect with
	// the next Reconcile only.
	SyncConfig(ctx context.Context, own Config) (inForce Config, err error)

	// RemoveConfig forgets limits; those that do not exist are passed over. Steps that hold a slot keep it. A step that
	// asks for a removed limit is denied as Unconfigured.
	RemoveConfig(ctx context.Context, names ...Name) error

	// Admit decides about claimed rows, most urgent first, on behalf of the worker that has claimed them. The answer has
	// one Decision a request, in the same order. Requests that name no limit are admitted at once.
	//
	// Whoever is admitted to a gate holds a slot until it is given back with Credit, by the backend's Reconcile when the
	// row no longer runs, or, where slots are leases, by its expiry. Asking again for a row that holds its slot already
	// admits it again at no cost.
	Admit(ctx context.Context, worker string, requests []Request) ([]Decision, error)

	// Credit gives back slots. To be called after the end of the step is durable, once for each slot. However it is
	// called, a key never has more free slots than its limit; and slots that a Reconcile has counted as free since they
	// were released are not freed a second time. Slots of removed limits are passed over.
	Credit(ctx context.Context, released []Release) error

	// Renew extends the hold on slots where holding one is a lease; it is called with each heartbeat. Where the truth
	// is elsewhere (as in the engine's own database, where the claims have leases) it does nothing.
	Renew(ctx context.Context, held []Slot, lease time.Duration) error

	// Reconcile compares what is counted with what is true, and corrects it: it returns slots that nobody holds, applies
	// changed numbers of limits and shards, and deletes the counters of keys that are at rest or whose limit is gone (a
	// key's shards together or not at all; it is found full again when it is next asked for). Several may run at once.
	Reconcile(ctx context.Context) (Reconciled, error)
}

// Request asks for one row's admission. The order of requests is their urgency.
type Request struct {
	// ID is the row, Claim the number of the worker's claim of it.
	ID    int64
	Claim int
	// Gate is the gate's key, or empty. The row must have been claimed under this key as a gated one.
	Gate string
	// Rate is the rate limit's key, or empty.
	Rate string
	// Weight is how many tokens of Rate it takes; with no Rate it means nothing. Zero or less takes none. One that is
	// larger than the burst takes a full bucket.
	Weight float64
}

// Decision answers one Request.
type Decision struct {
	// Verdict is Admitted, or why not.
	Verdict Verdict
	// By and Key name the limit that denied: the gate or the rate of the request. Empty when admitted or NotOwned.
	By  Kind
	Key string
	// Shard is the slot that was drawn, when admitted to a gate. It goes back with the Credit.
	Shard int16
	// RetryIn is when it makes sense to ask for this key again, from now. Of a saturated rate: the time until the first
	// denied row's tokens are there, if nobody else takes them. Negative: unknown; something has to change first (a slot
	// credited, a limit configured). Zero: at once.
	RetryIn time.Duration
}

// Verdict is the outcome of an admission.
type Verdict uint8

// The verdicts.
const (
	// Admitted: run it.
	Admitted Verdict = iota
	// Saturated: the limit has nothing left for this row.
	Saturated
	// Contended: the limit may well have something left, but others were at it just now, or rows before this one kept
	// it for themselves and were then denied by another limit. Ask again soon.
	Contended
	// Unconfigured: there is no limit of that name.
	Unconfigured
	// NotOwned: the row is not this worker's under this claim any more, or somebody holds it locked just now. Give the
	// claim back.
	NotOwned
)

// String names the verdict.
func (v Verdict) String() string {
	switch v {
	case Admitted:
		return "admitted"
	case Saturated:
		return "saturated"
	case Contended:
		return "contended"
	case Unconfigured:
		return "unconfigured"
	case NotOwned:
		return "not owned"
	}
	return "unknown"
}

// Slot is a gate's slot that a row holds.
type Slot struct {
	ID    int64
	Claim int
	Key   string
	Shard int16
}

// Release is a slot whose holder has ended.
type Release struct {
	Slot
	// Mark says when it ended, in the backend's own terms: for the engine's database the id of the transaction that ended
	// the row's execution. It is what lets a Credit be told from one that a Reconcile has counted already. Zero where the
	// backend needs none.
	Mark uint64
}

// Reconciled is what a Reconcile has corrected.
type Reconciled struct {
	// Healed are the slots that were counted as taken and held by nobody; Taken those that were counted as free and held.
	Healed, Taken int
	// Reshaped are keys whose shards were changed after a change of the configuration.
	Reshaped int
	// Swept are keys that were at rest or had lost their limit.
	Swept int
}

// Add sums up.
func (r Reconciled) Add(o Reconciled) Reconciled {
	return Reconciled{r.Healed + o.Healed, r.Taken + o.Taken, r.Reshaped + o.Reshaped, r.Swept + o.Swept}
}
