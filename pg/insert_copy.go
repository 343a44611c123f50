package pg

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Copier is what Copy needs beyond DB; a *pgxpool.Pool, a *pgx.Conn and a pgx.Tx are ones.
type Copier interface {
	DB
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

// Copy inserts the rows by COPY, all or none. It is the fastest way in, and answers nothing: rows with a correlation key or a
// request id, whose insertion may come out otherwise, are an error. It takes two round trips (the driver asks for the
// columns' types first), and one more when a row names a time, because those that name none are eligible by the
// database's clock.
func (s *Store) Copy(ctx context.Context, db Copier, rows []Insertion) error {
	if len(rows) == 0 {
		return nil
	}
	columns := []string{"fsm", "fsm_version", "step", "state", "queue", "priority", "has_inbox", "has_children"}
	limited, timed := false, false
	for i := range rows {
		r := &rows[i]
		if r.CorrelationKey != "" || r.RequestID != "" {
			return fmt.Errorf("pg: entry %d has a correlation key or a request id, which COPY cannot judge; use Insert", i)
		}
		limited = limited || r.ConcurrencyKey != "" || r.RateLimit != ""
		timed = timed || !r.EligibleAt.IsZero() || r.Delay != 0
	}
	var now time.Time
	if timed {
		columns = append(columns, "eligible_at")
		if err := db.QueryRow(ctx, "SELECT now()").Scan(&now); err != nil {
			return fmt.Errorf("pg: read the database's clock: %w", err)
		}
	}
	if limited {
		columns = append(columns, "concurrency_key", "rate_limit", "weight")
	}
	values := make([]any, 0, len(columns))
	source := pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
		r := &rows[i]
		values = append(values[:0], r.Machine, int32(r.Version), r.Step, json.RawMessage(jsonOrEmpty(r.State)), r.Queue, r.Priority,
			s.interoperable, s.interoperable)
		if timed {
			values = append(values, r.eligibleAt(now))
		}
		if limited {
			values = append(values, textOrNull(r.ConcurrencyKey), textOrNull(r.RateLimit), weightOrOne(r.Weight))
		}
		return values, nil
	})
	n, err := db.CopyFrom(ctx, pgx.Identifier{s.schema, "gen_durable"}, columns, source)
	if err == nil && n != int64(len(rows)) {
		err = fmt.Errorf("%d rows arrived", n)
	}
	if err != nil {
		return fmt.Errorf("pg: copy %d instances: %w", len(rows), err)
	}
	return nil
}

func (r *Insertion) eligibleAt(now time.Time) time.Time {
	if !r.EligibleAt.IsZero() {
		return r.EligibleAt
	}
	return now.Add(r.Delay)
}

func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
