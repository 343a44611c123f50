package gendurable

import (
	"errors"
	"fmt"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// The errors that callers tell apart with errors.Is.
var (
	// ErrInvalid marks what is refused because of its content: a bad name, key, payload, delay, weight, and every
	// problem that Config has. The text names the field and the limit.
	ErrInvalid = fsm.ErrInvalid
	// ErrDuplicate: a live instance occupies the correlation key. See DuplicateError.
	ErrDuplicate = errors.New("gendurable: the correlation key is occupied")
	// ErrNoTarget: a signal's target is unknown, terminal, or nobody occupies the key. Nothing was stored.
	ErrNoTarget = errors.New("gendurable: no live instance to signal")
	// ErrNotFound: there is no such instance (any more).
	ErrNotFound = errors.New("gendurable: no such instance")
	// ErrNotFailed: only an instance that has failed can be retried.
	ErrNotFailed = errors.New("gendurable: the instance has not failed")
	// ErrStillBusy: the context ended before the awaited instance settled. The instance goes on.
	// The error also matches the context's own.
	ErrStillBusy = errors.New("gendurable: the instance has not settled yet")
	// ErrUnknownMachine: the machine is not in Config.Machines of this engine or client.
	ErrUnknownMachine = errors.New("gendurable: unknown machine")
	// ErrUnknownQueue: the queue is neither run by this configuration, nor the default of one of its machines,
	// nor listed in InsertQueues.
	ErrUnknownQueue = errors.New("gendurable: unknown queue")
	// ErrCodec: the Codec failed, or what was stored through one is read without one.
	ErrCodec = fsm.ErrCodec
	// ErrStopped: the engine was stopped, or gave up.
	ErrStopped = errors.New("gendurable: the engine has stopped")
	// ErrReplaced: another process started under this engine's NodeName. Engine.Err returns it.
	ErrReplaced = errors.New("gendurable: another process took over this node name")
	// ErrNotMigrated: the schema lacks tables or columns that this version needs. Call Migrate.
	ErrNotMigrated = pg.ErrNotMigrated
)

// DuplicateError is the ErrDuplicate of one insert.
type DuplicateError struct {
	Key string
	// Occupant is the instance that occupies the key; 0 when it ended at that very moment.
	Occupant ID
}

func (e *DuplicateError) Error() string {
	if e.Occupant == 0 {
		return fmt.Sprintf("%v: %q was held by an instance that has just ended; insert again", ErrDuplicate, e.Key)
	}
	return fmt.Sprintf("%v: %q is held by instance %d", ErrDuplicate, e.Key, e.Occupant)
}

// Is makes errors.Is(err, ErrDuplicate) true.
func (e *DuplicateError) Is(target error) bool { return target == ErrDuplicate }
