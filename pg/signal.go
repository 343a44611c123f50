package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Signal delivers the signals in one statement and one round trip, all that are not refused or none, and answers in
// their order. A delivery waits for whoever holds its target's row: a park commits first and is woken, an ending commits
// first and refuses it. The targets stay locked until the transaction ends.
func (s *Store) Signal(ctx context.Context, db DB, ds []Delivery) ([]Delivered, error) {
	if len(ds) == 0 {
		return nil, nil
	}
	var out []Delivered
	err := atomically(ctx, db, func(db DB) (err error) {
		if len(ds) == 1 {
			out, err = s.signalOne(ctx, db, &ds[0])
		} else {
			out, err = s.signalMany(ctx, db, ds)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pg: deliver %d signals: %w", len(ds), err)
	}
	return out, nil
}

func (s *Store) signalOne(ctx context.Context, db DB, d *Delivery) ([]Delivered, error) {
	key := d.Key
	if d.ID != 0 {
		key = ""
	}
	var out Delivered
	var signal *int64
	err := db.QueryRow(ctx, s.sql("signal_one"), d.ID, key, d.Name, jsonOrEmpty(d.Payload), d.DedupKey, d.TraceContext).
		Scan(&out.TargetID, &signal, &out.Queue, &out.Woken)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	out.SignalID = orZero(signal)
	out.Duplicate = out.TargetID != 0 && out.SignalID == 0
	return []Delivered{out}, nil
}

func (s *Store) signalMany(ctx context.Context, db DB, ds []Delivery) ([]Delivered, error) {
	n := len(ds)
	ids, keys, names := make([]int64, n), make([]string, n), make([]string, n)
	payloads, dedup := make([]string, n), make([]string, n)
	for i := range ds {
		d := &ds[i]
		if ids[i] = d.ID; d.ID == 0 {
			keys[i] = d.Key
		}
		names[i], payloads[i], dedup[i] = d.Name, jsonOrEmpty(d.Payload), d.DedupKey
	}
	traces := sparse(n, func(i int) string { return ds[i].TraceContext })
	rows, err := db.Query(ctx, s.sql("signal"), ids, keys, names, payloads, dedup, s.signalSequence, traces)
	if err != nil {
		return nil, err
	}
	return collectDelivered(rows, n)
}

// collectDelivered puts the three kinds of rows of the statement together.
func collectDelivered(rows pgx.Rows, n int) ([]Delivered, error) {
	defer rows.Close()
	type target struct {
		queue string
		woken bool
	}
	out, targets := make([]Delivered, n), make(map[int64]target)
	// Values that know null rather than pointers, and one set for all rows: each pointer would be allocated, row by row.
	var position, id, signal pgtype.Int8
	var queue pgtype.Text
	var woken pgtype.Bool
	into := []any{&position, &id, &signal, &queue, &woken}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		switch {
		case !position.Valid:
			targets[id.Int64] = target{queue.String, woken.Bool}
		case !signal.Valid:
			out[position.Int64-1].TargetID = id.Int64
		default:
			out[position.Int64-1].SignalID = signal.Int64
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for i := range out {
		if out[i].TargetID == 0 {
			continue
		}
		t := targets[out[i].TargetID]
		out[i].Queue, out[i].Duplicate = t.queue, out[i].SignalID == 0
		out[i].Woken = t.woken && !out[i].Duplicate
	}
	return out, nil
}
