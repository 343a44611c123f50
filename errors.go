package gendurable

import (
	"errors"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/pg"
)

// The errors that callers tell apart with errors.Is.
var (
	// ErrInvalid marks what is refused because of its content: a bad name, key, payload, delay, weight, and every
	// problem that Config has. The text names the field and the limit.
	ErrInvalid = fsm.ErrInvalid
	// ErrDuplicate: a live instance occupies the correlation key. See DuplicateError.
	ErrDuplicate = instance.ErrDuplicate
	// ErrNoTarget: a signal's target is unknown, terminal, or nobody occupies the key. Nothing was stored.
	ErrNoTarget = instance.ErrNoTarget
	// ErrNotFound: there is no such instance (any more).
	ErrNotFound = instance.ErrNotFound
	// ErrNotFailed: only an instance that has failed can be retried.
	ErrNotFailed = errors.New("gendurable: the instance has not failed")
	// ErrStillBusy: the context ended before the awaited instance settled. The instance goes on.
	// The error also matches the context's own.
	ErrStillBusy = instance.ErrStillBusy
	// ErrUnknownMachine: the machine is not in Config.Machines of this engine or client.
	ErrUnknownMachine = instance.ErrUnknownMachine
	// ErrUnknownQueue: the queue is neither run by this configuration, nor the default of one of its machines,
	// nor listed in InsertQueues.
	ErrUnknownQueue = instance.ErrUnknownQueue
	// ErrCodec: the Codec failed, or what was stored through one is read without one.
	ErrCodec = fsm.ErrCodec
	// ErrStopped: the engine was stopped, or gave up.
	ErrStopped = instance.ErrStopped
	// ErrReplaced: another process started under this engine's NodeName. Engine.Err returns it.
	ErrReplaced = errors.New("gendurable: another process took over this node name")
	// ErrNotMigrated: the schema lacks tables or columns that this version needs. Call Migrate.
	ErrNotMigrated = pg.ErrNotMigrated
)

// DuplicateError is the ErrDuplicate of one insert: it names the occupant.
type DuplicateError = instance.DuplicateError
