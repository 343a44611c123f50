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
