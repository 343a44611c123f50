package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/limiter"
)

// admitRetries bounds how often an admission that lost a race for a key's shards computes again.
const admitRetries = 10

// Admit implements limiter.Limiter. One statement and one round trip, again after a lost race; none when no request names
// a limit. It waits for nobody, except for another process that is making the counters of the same key just now. A gated
// row must have been claimed with its key and ProvisionalShard.
func (l *Limiter) Admit(ctx context.Context, worker string, requests []limiter.Request) ([]limiter.Decision, error) {
	a := newAdmission(requests)
	if len(a.ids) == 0 {
		return a.decisions, nil
	}
	for try := 0; ; try++ {
		err := onFreshPlan(ctx, l.s.db(), func(db DB) error {
			rows, err := db.Query(ctx, l.s.sql("limit_admit"), worker, a.ids, a.claims, a.gates, a.rates, a.weights)
			if err != nil {
				return err
			}
			return a.read(rows)
		})
		switch {
		case err == nil:
			return a.decisions, nil
		case lostRace(err) && try == admitRetries:
			return nil, fmt.Errorf("pg: admit %d rows: %w: %w", len(a.ids), limiter.ErrContended, err)
		case !lostRace(err):
			return nil, wrap(fmt.Sprintf("admit %d rows", len(a.ids)), err)
		}
	}
}

// admission is a batch of requests on its way, as parallel arrays, and its answer.
type admission struct {
	requests  []limiter.Request
	decisions []limiter.Decision
	index     []int // of each sent request among all
	ids       []int64
	claims    []int32
	gates     []*string
	rates     []*string
	weights   []float64
}

func newAdmission(requests []limiter.Request) *admission {
	a := &admission{requests: requests, decisions: make([]limiter.Decision, len(requests))}
	for i := range requests {
		r := &requests[i]
		if r.Gate == "" && r.Rate == "" {
			continue
		}
		a.index, a.ids, a.claims = append(a.index, i), append(a.ids, r.ID), append(a.claims, int32(r.Claim))
		a.gates, a.rates, a.weights = append(a.gates, orNull(&r.Gate)), append(a.rates, orNull(&r.Rate)), append(a.weights, r.Weight)
	}
	return a
}

func orNull(s *string) *string {
	if *s == "" {
		return nil
	}
	return s
}

// The places where limit_admit says that a row's way ended.
const (
	placeAdmitted = iota
	placeGate
	placeRate
	placeHeld
)

// verdictLine is a line of limit_admit.
type verdictLine struct {
	ord                  int
	place                int
	shard                *int16
	known, missed        bool
	before, weight       float64
	numbers              []int16
	frees, shares, fills []float64
}

// read makes the decisions of the lines. What no line speaks of is not the worker's.
func (a *admission) read(rows pgx.Rows) error {
	for _, i := range a.index {
		a.decisions[i] = limiter.Decision{Verdict: limiter.NotOwned, RetryIn: -1}
	}
	admitted := map[string]float64{} // by gate
	free := map[string]float64{}     // of gates that denied
	wait := map[string]time.Duration{}
	var v verdictLine
	var missed *bool
	_, err := pgx.ForEachRow(rows, []any{&v.ord, &v.place, &v.shard, &v.known, &missed, &v.before, &v.weight,
		&v.numbers, &v.frees, &v.shares, &v.fills}, func() error {
		i := a.index[v.ord-1]
		r, d := &a.requests[i], &a.decisions[i]
		v.missed = missed != nil && *missed
		switch v.place {
		case placeAdmitted, placeHeld:
			*d = limiter.Decision{}
			if v.shard != nil && r.Gate != "" {
				d.Shard = *v.shard
			}
			if v.place == placeAdmitted {
				admitted[r.Gate]++
			}
		case placeGate:
			*d = limiter.Decision{By: limiter.KindGate, Key: r.Gate}
			free[r.Gate] = v.before
		case placeRate:
			*d = limiter.Decision{By: limiter.KindRate, Key: r.Rate}
			if v.numbers != nil {
				wait[r.Rate] = v.wait()
			}
		}
		if d.By != "" {
			d.Verdict = deniedBecause(v.known, v.missed)
		}
		v.numbers, v.frees, v.shares, v.fills = nil, nil, nil, nil
		return nil
	})
	if err != nil {
		return err
	}
	for _, i := range a.index {
		d := &a.decisions[i]
		switch {
		case d.Verdict == limiter.Unconfigured:
			d.RetryIn = -1
		case d.Verdict != limiter.Saturated:
		case d.By == limiter.KindRate:
			d.RetryIn = -1
			if t, ok := wait[d.Key]; ok {
				d.RetryIn = t
			}
		case admitted[d.Key] < free[d.Key]:
			// Rows before it had the slots in hand and were then denied by their rates.
			d.Verdict = limiter.Contended
		default:
			d.RetryIn = -1
		}
	}
	return nil
}

func deniedBecause(known, missed bool) limiter.Verdict {
	switch {
	case !known:
		return limiter.Unconfigured
	case missed:
		return limiter.Contended
	}
	return limiter.Saturated
}

// wait is the time until the first denied row's tokens are there.
func (v *verdictLine) wait() time.Duration {
	buckets := make([]limiter.Bucket, len(v.numbers))
	for i := range v.numbers {
		buckets[i] = limiter.Bucket{Tokens: v.frees[i], Capacity: v.shares[i]}
		if i < len(v.fills) {
			buckets[i].PerSecond = v.fills[i]
		}
	}
	limiter.Take(buckets, v.before)
	return limiter.Until(buckets, v.weight)
}
