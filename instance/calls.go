package instance

// InsertResult answers one instance of InsertMany.
type InsertResult struct {
	// ID is the new instance; with Duplicate the occupant of the correlation key (0 when it ended at that very
	// moment); with Repeated the instance that the first request made.
	ID        ID
	Duplicate bool
	Repeated  bool
}

// SignalOption is an option of Signal.
type SignalOption func(*Delivery)

// DedupKey makes a repeated delivery a no-op: a key is accepted once for a target as long as the target exists,
// also after the first signal was consumed.
func DedupKey(key string) SignalOption { return func(d *Delivery) { d.DedupKey = key } }

// Delivery is one signal of SignalMany.
type Delivery struct {
	To   Ref
	Name string
	// Payload is encoded as JSON; nil is an empty object.
	Payload any
	// DedupKey, if not empty, makes a repeated delivery a no-op.
	DedupKey string
}

// SignalResult answers one Delivery.
type SignalResult struct {
	Target ID
	// Duplicate: the dedup key was accepted before; nothing was stored.
	Duplicate bool
	// Err is ErrNoTarget when the target is unknown, terminal or nobody occupies the key.
	Err error
}
