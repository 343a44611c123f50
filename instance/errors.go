package instance

import (
	"errors"
	"fmt"

	"github.com/gendurable/gendurable/fsm"
)

// The refusals that callers tell apart with errors.Is; package gendurable says what each means.
var (
	ErrInvalid        = fsm.ErrInvalid
	ErrCodec          = fsm.ErrCodec
	ErrDuplicate      = errors.New("gendurable: the correlation key is occupied")
	ErrNoTarget       = errors.New("gendurable: no live instance to signal")
	ErrNotFound       = errors.New("gendurable: no such instance")
	ErrStillBusy      = errors.New("gendurable: the instance has not settled yet")
	ErrUnknownMachine = errors.New("gendurable: unknown machine")
	ErrUnknownQueue   = errors.New("gendurable: unknown queue")
	ErrStopped        = errors.New("gendurable: the engine has stopped")
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
