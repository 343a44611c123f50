package redislimiter

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/gendurable/gendurable/limiter"
)

// maxDoubtful bounds the slots that are given back after lost answers; others are left to their leases.
const maxDoubtful = 10_000

// maxLosses is how often in a row an Admit puts back limits that were lost.
const maxLosses = 3

// Admit implements limiter.Limiter. One round trip, none when no request names a limit; more after a loss of the counters.
// Slots that it may have taken although its answer was lost are given back before the next Admit, Renew or Reconcile.
func (l *Limiter) Admit(ctx context.Context, _ string, requests []limiter.Request) ([]limiter.Decision, error) {
	b := l.newBatch(requests)
	if len(b.index) == 0 {
		return b.decisions, nil
	}
	if err := l.dismiss(ctx); err != nil {
		return nil, fmt.Errorf("redislimiter: admit %d rows: %w", len(b.index), err)
	}
	for range maxLosses {
		known := l.known()
		reply, err := l.run(ctx, admitScript, known, b.keys, b.args...).Slice()
		if err != nil {
			l.doubt(b.slots)
			return nil, wrap(fmt.Sprintf("admit %d rows", len(b.index)), err)
		}
		if l.strange(known, reply[0]) {
			if _, err := l.recover(ctx, known); err != nil {
				return nil, fmt.Errorf("redislimiter: admit %d rows: %w", len(b.index), err)
			}
			continue
		}
		if err := b.read(reply); err != nil {
			l.doubt(b.slots)
			return nil, wrap(fmt.Sprintf("admit %d rows", len(b.index)), err)
		}
		return b.decisions, nil
	}
	return nil, fmt.Errorf("redislimiter: admit %d rows: %w: Redis loses its data over and over", len(b.index), limiter.ErrContended)
}

// strange reports whether a script has found other counters than the known ones. The first that are found are known.
func (l *Limiter) strange(known string, found any) bool {
	era, _ := found.(string)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.era == "" {
		l.era = era
	}
	return known != "" && era != known
}

// batch is a number of requests on their way to the script, and the answer.
type batch struct {
	requests  []limiter.Request
	decisions []limiter.Decision
	index     []int // of each sent request among all
	slots     []slot
	keys      []string
	args      []any
}

func (l *Limiter) newBatch(requests []limiter.Request) *batch {
	b := &batch{requests: requests, decisions: make([]limiter.Decision, len(requests)), keys: []string{l.limits(), l.buckets(), l.used()}}
	var gates, rates, rows []any
	gateAt, rateAt := map[string]int{"": 0}, map[string]int{"": 0}
	for i := range requests {
		r := &requests[i]
		if r.Gate == "" && r.Rate == "" {
			continue
		}
		row := l.row(r.ID, r.Claim)
		if r.Gate != "" {
			b.slots = append(b.slots, slot{r.Gate, row})
		}
		if _, ok := gateAt[r.Gate]; !ok {
			gates, b.keys = append(gates, r.Gate), append(b.keys, l.holders(r.Gate))
			gateAt[r.Gate] = len(gates)
		}
		if _, ok := rateAt[r.Rate]; !ok {
			rates = append(rates, r.Rate)
			rateAt[r.Rate] = len(rates)
		}
		b.index = append(b.index, i)
		rows = append(rows, row, gateAt[r.Gate], rateAt[r.Rate], strconv.FormatFloat(r.Weight, 'g', -1, 64))
	}
	b.args = append([]any{len(gates), len(rates)}, gates...)
	b.args = append(append(b.args, rates...), rows...)
	return b
}

// verdicts are the script's.
var verdicts = []limiter.Verdict{limiter.Admitted, limiter.Saturated, limiter.Unconfigured}

// Who denied, as the script says it.
const (
	byGate = 1
	byRate = 2
)

func (b *batch) read(reply []any) error {
	const each = 3
	if len(reply) != 1+each*len(b.index) {
		return fmt.Errorf("an answer of %d parts for %d rows", len(reply), len(b.index))
	}
	for n, i := range b.index {
		var parts [each]int64
		for p := range parts {
			var ok bool
			if parts[p], ok = reply[1+each*n+p].(int64); !ok {
				return fmt.Errorf("unexpected answer %v", reply)
			}
		}
		if parts[0] < 0 || parts[0] >= int64(len(verdicts)) {
			return fmt.Errorf("unexpected answer %v", reply)
		}
		d := limiter.Decision{Verdict: verdicts[parts[0]]}
		switch parts[1] {
		case byGate:
			d.By, d.Key = limiter.KindGate, b.requests[i].Gate
		case byRate:
			d.By, d.Key = limiter.KindRate, b.requests[i].Rate
		}
		if d.RetryIn = time.Duration(parts[2]) * time.Microsecond; parts[2] < 0 {
			d.RetryIn = -1
		}
		b.decisions[i] = d
	}
	return nil
}

// doubt remembers slots that may have been taken.
func (l *Limiter) doubt(slots []slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubtful = append(l.doubtful, slots[:min(len(slots), max(0, maxDoubtful-len(l.doubtful)))]...)
}

// dismiss gives back doubtful slots, of which the claims have been given back since.
func (l *Limiter) dismiss(ctx context.Context) error {
	l.mu.Lock()
	slots := l.doubtful
	l.doubtful = nil
	l.mu.Unlock()
	if len(slots) == 0 {
		return nil
	}
	if err := l.free(ctx, slots); err != nil {
		l.doubt(slots)
		return fmt.Errorf("slots that an earlier call may have taken cannot be given back: %w", err)
	}
	return nil
}
