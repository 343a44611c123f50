package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrorClass says what kind of failure an error of this package is, and so what may help.
type ErrorClass int

// The classes of errors.
const (
	// Other: none of the below, among them the caller's own context. Trying again may or may not help.
	Other ErrorClass = iota
	// Data: Postgres refuses the content of one of the entries. Trying the same again never helps; a batch is to be
	// split until the culprit is alone.
	Data
	// Contention: somebody else holds a row or a key: lock timeout, deadlock, serialization, a unique key that is
	// taken. The entry itself is good; the same again succeeds some time.
	Contention
	// Connection: there is no usable server just now: refused, lost, shutting down, out of connections or space,
	// read-only after a failover. The same again succeeds once it is back.
	Connection
	// Plan: a prepared statement went stale (a migration while nodes run, a proxy that dropped it). A fresh
	// connection helps; this package has tried that once already.
	Plan
)

// String names the class.
func (c ErrorClass) String() string {
	switch c {
	case Data:
		return "data"
	case Contention:
		return "contention"
	case Connection:
		return "connection"
	case Plan:
		return "plan"
	}
	return "other"
}

// Classify says what kind of failure err is. It goes by SQLSTATE, never by a message, which may be in any language.
// Of nil it says Other.
func Classify(err error) ErrorClass {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Other
	}
	if isStalePlan(err) {
		return Plan
	}
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return classifyState(server.Code)
	}
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.Is(err, errSilent), errors.As(err, &connect), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed), pgconn.SafeToRetry(err):
		return Connection
	}
	return Other
}

func classifyState(code string) ErrorClass {
	switch code {
	case "23505", // a unique key taken: of children, or of a row whose scope it enters only now
		"40001", "40P01", // serialization, deadlock
		"55P03", "55006", // lock timeout, object in use
		"22012", // only flush_fence divides: somebody else flushes under this name
		"57014": // cancelled, by a statement_timeout of the role: a smaller batch may fit
		return Contention
	case "25006", // read-only: the old primary of a failover
		"57P01", "57P02", "57P03", "57P04", "57P05": // shutdown, crash, starting up, database dropped, idle timeout
		return Connection
	case "42P05": // a statement of that name exists already
		return Plan
	}
	switch code[:min(2, len(code))] {
	case "22", // bad encodings, JSON and numbers
		"23", // other constraints
		"54": // an index entry, a string, a nesting too large
		return Data
	case "08", "53": // connection; out of connections, memory or disk
		return Connection
	}
	return Other
}

// Blocked returns those of the rows that somebody else holds locked just now. It waits for nothing and changes nothing.
// Rows that do not exist are not blocked.
func (s *Store) Blocked(ctx context.Context, ids []int64) ([]int64, error) {
	var blocked []int64
	err := within(ctx, 0, func(ctx context.Context) error {
		return onFreshPlan(ctx, s.pool, func(db DB) error {
			rows, err := db.Query(ctx, s.sql("blocked"), ids)
			if err != nil {
				return err
			}
			blocked, err = pgx.CollectRows(rows, pgx.RowTo[int64])
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("pg: look for locked rows: %w", err)
	}
	return blocked, nil
}
