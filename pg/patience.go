package pg

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// errSilent says that the server gave no answer in time: the connection may have died without a word, as those do that
// a firewall forgets. To Classify it is a lost connection.
var errSilent = errors.New("pg: the server gave no answer")

// flushPatience is how long one statement of a flush may take. All outcomes of a flusher wait behind it, and TCP alone would
// take a quarter of an hour to notice a dead peer; what is given up here is settled on another connection.
var flushPatience atomic.Int64 // a time.Duration; a variable for the tests

func init() { flushPatience.Store(int64(30 * time.Second)) }

// within runs fn with a time limit of its own, which is flushPatience and extra together.
func within(ctx context.Context, extra time.Duration, fn func(ctx context.Context) error) error {
	limit := time.Duration(flushPatience.Load()) + extra
	own, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := fn(own)
	if err != nil && own.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w within %v: %v", errSilent, limit, err) // not %w: it is no end of the caller's context
	}
	return err
}
