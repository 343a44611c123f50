package pg

import (
	"encoding/json"
	"time"
)

// ClaimLimits are what a claim needs to know of limits. The zero value knows of none. It is immutable once given to Claim.
//
// Only Gates decides what is right; the others keep out of a claim what would have to be given back at once. So a stale
// one costs time, and never a limit.
type ClaimLimits struct {
	// Gates are the names of the gates in force. A row whose key belongs to one is claimed whatever others of its key
	// do, and carries ProvisionalShard: it must be admitted by the limiter before it runs. A gate in
	// gen_durable_bucket_configs that is missing here keeps its keys out of the claim.
	Gates Names
	// BusyGates are keys of gates whose rows are left out.
	BusyGates Names
	// ProbedGates are names of gates whose rows are taken only as far as the counters show free slots, one index probe a
	// row that is looked at. A key without counters is free. With counters kept elsewhere this leaves nothing out.
	ProbedGates Names
	// SpentRates are keys of rate limits, UnknownRates names whose rows are left out. ProbedRates are names whose rows are
	// taken only if the counters show the tokens.
	SpentRates, UnknownRates, ProbedRates Names
	// RateQuotas are how many rows of a rate limit's key to take at most. At least 1 each.
	RateQuotas map[string]int
}

// Names is an immutable set of names or keys. The zero value is empty.
type Names struct {
	// object is a JSON object with the names as fields, empty for none.
	object string
}

// NamesOf makes a set.
func NamesOf(names ...string) Names {
	if len(names) == 0 {
		return Names{}
	}
	fields := make(map[string]int, len(names))
	for _, n := range names {
		fields[n] = 1
	}
	return Names{object(fields)}
}

// object encodes fields; a map of strings and numbers always can be.
func object(fields map[string]int) string {
	text, err := json.Marshal(fields)
	if err != nil {
		panic("pg: encode a set of names: " + err.Error())
	}
	return string(text)
}

func (n Names) arg() any {
	if n.object == "" {
		return nil
	}
	return n.object
}

// args are the claim's arguments from the gates on.
func (l *ClaimLimits) args() []any {
	var quotas any
	if len(l.RateQuotas) > 0 {
		quotas = object(l.RateQuotas)
	}
	return []any{l.Gates.arg(), l.BusyGates.arg(), l.ProbedGates.arg(), l.SpentRates.arg(), l.UnknownRates.arg(), l.ProbedRates.arg(), quotas}
}

// Lane is where to begin in a priority.
type Lane struct {
	Priority int16
	Since    time.Time // the zero time: from the first row on
}

// ClaimReport tells more of a claim than its rows.
type ClaimReport struct {
	// Horizon, when it is above 0, asks for Ahead, which costs two probes a priority and no round trip.
	Horizon time.Duration
	// Ahead is in what time the queue's next row that is scheduled for later becomes eligible; 0 = none within the Horizon.
	Ahead time.Duration

	// Survey asks for Priorities and At, which costs a probe a priority and no round trip; behind ClaimRequest.Since for At alone,
	// which costs nothing.
	Survey bool

	// Looked is how many rows could have been claimed, at most the limit; more than were when several had one key. It is 0
	// when nothing was claimed.
	Looked int
	// Priorities are those of the queue's runnable rows, and At the time by which the claim judged what is eligible. Both are zero
	// when it lost a race for a key and therefore claimed less than it was asked for.
	Priorities []int16
	At         time.Time
}
