package instance

import (
	"encoding/json"
	"time"

	"github.com/gendurable/gendurable/fsm"
)

// Instance is everything the database says of one instance.
type Instance struct {
	ID              ID
	Machine         string
	Version         int
	Step            string
	Status          fsm.Status
	State           json.RawMessage
	Result          json.RawMessage // of a done instance
	LastError       string          // of a failed instance, or of the last failed attempt
	Queue           string
	Priority        int
	Attempt         int
	Crashes         int // how often in a row the step took its worker down
	Awaits          []string
	AwaitDeadline   time.Time // zero = none
	EligibleAt      time.Time
	ConcurrencyKey  string
	RateLimit       string
	Weight          float64
	CorrelationKey  string
	ParentID        ID // 0 = none
	ChildrenPending int
	LockedBy        string    // the claim of an executing instance
	LeaseExpiresAt  time.Time // zero = not executing
	CancelRequested bool
	CancelReason    string
	InsertedAt      time.Time
	UpdatedAt       time.Time // of a terminal instance: when it ended
}

// Cancellation says what a Cancel came to.
type Cancellation string

// The results of Cancel.
const (
	// CancelEnded: the instance was not executing and is failed now.
	CancelEnded Cancellation = "ended"
	// CancelRequested: it is executing. Its step's context is cancelled, and whatever the step returns, the
	// instance ends as failed.
	CancelRequested Cancellation = "requested"
	// CancelTooLate: it was terminal already.
	CancelTooLate Cancellation = "already terminal"
)

// CancelOption is an option of Cancel.
type CancelOption func(*Cancelling)

// Cancelling is what the options of one Cancel set.
type Cancelling struct {
	// Cascade: the instance's descendants are cancelled, too.
	Cascade bool
}

// CancellingOf applies options.
func CancellingOf(opts []CancelOption) Cancelling {
	var c Cancelling
	for _, opt := range opts {
		opt(&c)
	}
	return c
}

// Cascade makes Cancel go on to the instance's children, their children, and so on: the instance first, then each of the
// others in a transaction of its own. It goes on below an instance that has ended already.
func Cascade() CancelOption { return func(c *Cancelling) { c.Cascade = true } }
