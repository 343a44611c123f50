package fsm

import (
	"encoding/json"
	"time"
)

// Signal is one entry of an instance's inbox.
type Signal struct {
	ID         int64
	Name       string
	Payload    json.RawMessage
	InsertedAt time.Time
}

// Child is a child instance as its parent sees it.
type Child struct {
	ID             int64
	Machine        string
	Status         Status
	CorrelationKey string
	State          json.RawMessage
	Result         json.RawMessage // of a done child
	Error          string          // of a failed child
}
