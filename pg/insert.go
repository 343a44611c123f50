package pg

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Insert inserts the rows in one statement, all or none, and answers in their order. It takes one round trip; one more
// when an entry met a correlation key or request id that was committed while it waited for it.
//
// An occupied key and a repeated request are answers, not errors. Within a batch the first entry with a key or request
// id wins. An error that Postgres raised says that nothing was inserted, and has aborted a caller's transaction; after a
// lost connection nobody knows, unless the entries carry request ids and are inserted again.
func (s *Store) Insert(ctx context.Context, db DB, rows []Insertion) ([]Inserted, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	keyed := false
	for i := range rows {
		keyed = keyed || rows[i].CorrelationKey != "" || rows[i].RequestID != ""
	}
	out, err := s.insert(ctx, db, rows, keyed)
	if err != nil {
		return nil, fmt.Errorf("pg: insert %d instances: %w", len(rows), err)
	}
	return out, nil
}

func (s *Store) insert(ctx context.Context, db DB, rows []Insertion, keyed bool) (out []Inserted, err error) {
	if keyed {
		return s.insertKeyed(ctx, db, rows)
	}
	err = atomically(ctx, db, func(db DB) (err error) {
		if len(rows) == 1 {
			out, err = s.insertOne(ctx, db, &rows[0])
		} else {
			out, err = s.insertMany(ctx, db, rows)
		}
		return err
	})
	return out, err
}

func (s *Store) insertOne(ctx context.Context, db DB, r *Insertion) ([]Inserted, error) {
	var eligible *time.Time
	if !r.EligibleAt.IsZero() {
		eligible = &r.EligibleAt
	}
	var id int64
	err := db.QueryRow(ctx, s.sql("insert_one"), r.Machine, int32(r.Version), r.Step, jsonOrEmpty(r.State), r.Queue,
		r.Priority, r.ConcurrencyKey, r.RateLimit, weightOrOne(r.Weight), eligible, r.Delay.Microseconds(),
		s.interoperable, r.TraceContext).Scan(&id)
	if err != nil {
		return nil, err
	}
	return []Inserted{{ID: id}}, nil
}

func (s *Store) insertMany(ctx context.Context, db DB, rows []Insertion) ([]Inserted, error) {
	var text string
	var args []any
	switch {
	case !bare(rows):
		text, args = s.sql("insert_many"), append(insertArgs(rows, s.interoperable), tracesOf(rows))
	case alike(rows):
		text, args = s.sql("insert_alike"), append(alikeArgs(rows), s.interoperable)
	default:
		text, args = s.sql("insert_bare"), append(bareArgs(rows), s.interoperable)
	}
	r, err := db.Query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	out := make([]Inserted, 0, len(rows))
	var id int64
	for r.Next() {
		if err := r.Scan(&id); err != nil {
			return nil, err
		}
		out = append(out, Inserted{ID: id})
	}
	return out, r.Err()
}

// bare reports whether insert_bare has a column for everything that the rows say.
func bare(rows []Insertion) bool {
	for i := range rows {
		r := &rows[i]
		if r.ConcurrencyKey != "" || r.RateLimit != "" || weightOrOne(r.Weight) != 1 || r.Delay != 0 ||
			!r.EligibleAt.IsZero() || r.TraceContext != "" {
			return false
		}
	}
	return true
}

// alike reports whether rows that are bare differ in nothing but their states, which costs one array instead of six.
func alike(rows []Insertion) bool {
	first := &rows[0]
	for i := range rows {
		r := &rows[i]
		if r.Machine != first.Machine || r.Version != first.Version || r.Step != first.Step || r.Queue != first.Queue || r.Priority != first.Priority {
			return false
		}
	}
	return true
}

func alikeArgs(rows []Insertion) []any {
	states := make([]string, len(rows))
	for i := range rows {
		states[i] = jsonOrEmpty(rows[i].State)
	}
	r := &rows[0]
	return []any{r.Machine, int32(r.Version), r.Step, states, r.Queue, r.Priority}
}

// bareArgs are the parameters $1 to $6 that all statements for many rows share.
func bareArgs(rows []Insertion) []any {
	n := len(rows)
	machine, version, step := make([]string, n), make([]int32, n), make([]string, n)
	state, queue, priority := make([]string, n), make([]string, n), make([]int16, n)
	for i := range rows {
		r := &rows[i]
		machine[i], version[i], step[i] = r.Machine, int32(r.Version), r.Step
		state[i], queue[i], priority[i] = jsonOrEmpty(r.State), r.Queue, r.Priority
	}
	return []any{machine, version, step, state, queue, priority}
}

// insertArgs are the parameters $1 to $12 of insert_many and insert_keyed.
func insertArgs(rows []Insertion, interoperable bool) []any {
	n := len(rows)
	key, rate, weight := make([]string, n), make([]string, n), make([]float64, n)
	eligible, delay := make([]*time.Time, n), make([]int64, n)
	for i := range rows {
		r := &rows[i]
		key[i], rate[i], weight[i] = r.ConcurrencyKey, r.RateLimit, weightOrOne(r.Weight)
		if !r.EligibleAt.IsZero() {
			eligible[i] = &r.EligibleAt
		}
		delay[i] = r.Delay.Microseconds()
	}
	return append(bareArgs(rows), key, rate, weight, eligible, delay, interoperable)
}

// tracesOf are the trace contexts of the rows.
func tracesOf(rows []Insertion) any {
	return sparse(len(rows), func(i int) string { return rows[i].TraceContext })
}

// sparse is the parameter text[] of n values, ” = none; null when there are none at all, which allocates nothing, and which
// unnest fills up with nulls.
func sparse(n int, value func(int) string) any {
	for i := range n {
		if value(i) == "" {
			continue
		}
		values := make([]string, n)
		for i := range values {
			values[i] = value(i)
		}
		return values
	}
	return nil
}

func (s *Store) insertKeyed(ctx context.Context, db DB, rows []Insertion) ([]Inserted, error) {
	keys, scopes, requests := make([]string, len(rows)), make([]int16, len(rows)), make([]string, len(rows))
	var both []string
	for i := range rows {
		scope, err := scopeCode(rows[i].CorrelationScope)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		keys[i], requests[i] = rows[i].CorrelationKey, rows[i].RequestID
		if keys[i] == "" {
			continue
		}
		if scopes[i] = scope; requests[i] != "" {
			both = append(both, requests[i])
		}
	}
	args := append(insertArgs(rows, s.interoperable), keys, scopes, requests, s.idSequence, tracesOf(rows))
	var found []keyedEntry
	// What follows is another transaction: nothing in it may run this one again.
	err := atomically(ctx, db, func(db DB) (err error) {
		batch := &pgx.Batch{}
		batch.Queue(s.sql("insert_keyed"), args...)
		if both != nil {
			batch.Queue(s.sql("insert_forget"), both)
		}
		results := db.SendBatch(ctx, batch)
		found, err = collectKeyed(results, len(rows))
		if cerr := results.Close(); err == nil {
			err = cerr
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.judge(ctx, db, rows, scopes, found)
}

// keyedEntry is what insert_keyed says of an entry; 0 = null.
type keyedEntry struct{ inserted, first, occupant int64 }

func collectKeyed(results pgx.BatchResults, n int) ([]keyedEntry, error) {
	r, err := results.Query()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	found := make([]keyedEntry, n)
	for r.Next() {
		var position int64
		var id, first, occupant *int64
		if err := r.Scan(&position, &id, &first, &occupant); err != nil {
			return nil, err
		}
		found[position-1] = keyedEntry{orZero(id), orZero(first), orZero(occupant)}
	}
	return found, r.Err()
}

// judge turns what insert_keyed found into answers: first from the batch itself, then, for what is still unknown, from a
// look at the database as it is now.
func (s *Store) judge(ctx context.Context, db DB, rows []Insertion, scopes []int16, found []keyedEntry) ([]Inserted, error) {
	requests, keys := map[string]int64{}, map[string]int64{}
	for i, f := range found {
		if f.inserted == 0 {
			continue
		}
		if rows[i].RequestID != "" {
			requests[rows[i].RequestID] = f.inserted
		}
		if scopes[i] > 0 {
			keys[rows[i].CorrelationKey] = f.inserted
		}
	}
	out := make([]Inserted, len(rows))
	var unknown []int
	for i, f := range found {
		switch request, key := rows[i].RequestID, rows[i].CorrelationKey; {
		case f.inserted != 0:
			out[i] = Inserted{ID: f.inserted}
		case f.first != 0:
			out[i] = Inserted{ID: f.first, Repeated: true}
		case request != "" && requests[request] != 0:
			out[i] = Inserted{ID: requests[request], Repeated: true}
		case request == "" && f.occupant != 0:
			out[i] = Inserted{ID: f.occupant, Duplicate: true}
		case request == "" && keys[key] != 0:
			out[i] = Inserted{ID: keys[key], Duplicate: true}
		default:
			unknown = append(unknown, i)
		}
	}
	if unknown == nil {
		return out, nil
	}
	// With a request id the key alone proves nothing: the request may have been repeated by a racing insert whose
	// instance holds the key. So those are looked at again even if the occupant is known.
	later, err := s.lookAgain(ctx, db, rows, unknown)
	if err != nil {
		return nil, err
	}
	for n, i := range unknown {
		occupant := later[n].occupant
		if occupant == 0 {
			occupant = max(found[i].occupant, keys[rows[i].CorrelationKey])
		}
		out[i] = Inserted{ID: occupant, Duplicate: true}
		if later[n].first != 0 || scopes[i] == 0 {
			out[i] = Inserted{ID: later[n].first, Repeated: true}
		}
	}
	return out, nil
}

func (s *Store) lookAgain(ctx context.Context, db DB, rows []Insertion, entries []int) ([]keyedEntry, error) {
	requests, keys := make([]string, len(entries)), make([]string, len(entries))
	for n, i := range entries {
		requests[n], keys[n] = rows[i].RequestID, rows[i].CorrelationKey
	}
	var later []keyedEntry
	err := atomically(ctx, db, func(db DB) error {
		r, err := db.Query(ctx, s.sql("insert_found"), requests, keys)
		if err != nil {
			return err
		}
		later, err = pgx.CollectRows(r, func(row pgx.CollectableRow) (keyedEntry, error) {
			var first, occupant *int64
			err := row.Scan(&first, &occupant)
			return keyedEntry{first: orZero(first), occupant: orZero(occupant)}, err
		})
		return err
	})
	return later, err
}

// scopeCode is the number by which the statements know a correlation scope.
func scopeCode(scope []string) (int16, error) {
	if len(scope) == 0 {
		return 0, nil
	}
	live, code := 0, int16(1)
	for i, status := range scope {
		if slices.Contains(scope[:i], status) {
			continue
		}
		switch Status(status) {
		case Runnable, Executing, AwaitingSignal, AwaitingChildren:
			live++
		case Done:
			code++
		case Failed:
			code += 2
		default:
			return 0, fmt.Errorf("the correlation scope names %q, which is no status", status)
		}
	}
	if live != 4 {
		return 0, fmt.Errorf("the correlation scope %v is not allowed: name all four statuses that are not terminal, and done or failed if you like, or none at all", scope)
	}
	return code, nil
}

func weightOrOne(w float64) float64 {
	if w == 0 {
		return 1
	}
	return w
}

// jsonOrEmpty is a document as the statements take it: as text. A []byte would be taken for bytea by the modes of pgx that
// ask the server for no types.
func jsonOrEmpty(b []byte) string {
	if len(b) == 0 {
		return "{}"
	}
	return string(b)
}

func orZero(id *int64) int64 {
	if id == nil {
		return 0
	}
	return *id
}
