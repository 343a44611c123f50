package flusher

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gendurable/gendurable/pg"
)

// classify refines what pg knows of an error: a lock that was not to be had leads to a look for the row, while
// a deadlock or a serialization failure has ended by itself.
func classify(err error) Fault {
	switch pg.Classify(err) {
	case pg.Data:
		return Content
	case pg.Contention:
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == "40P01" || e.Code == "40001") {
			return Collided
		}
		return Locked
	case pg.Connection:
		return Away
	default:
		return Unknown
	}
}
