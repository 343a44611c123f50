package redislimiter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gendurable/gendurable/limiter"
)

// page is how much one script, or one command, does at most: others wait while it runs.
const page = 1000

// Credit implements limiter.Limiter. Marks and shards are not looked at, and repeating it does no harm: a holder is known
// by its row and claim. One round trip.
func (l *Limiter) Credit(ctx context.Context, released []limiter.Release) error {
	slots := make([]slot, len(released))
	for i, r := range released {
		slots[i] = l.slot(r.Slot)
	}
	if err := l.free(ctx, slots); err != nil {
		return fmt.Errorf("redislimiter: give back %d slots: %w", len(slots), err)
	}
	return nil
}

// free removes holders.
func (l *Limiter) free(ctx context.Context, slots []slot) error {
	if len(slots) == 0 {
		return nil
	}
	of := map[string][]any{}
	for _, s := range slots {
		of[s.gate] = append(of[s.gate], s.row)
	}
	_, err := l.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for gate, rows := range of {
			for some := range slices.Chunk(rows, page) {
				p.ZRem(ctx, l.holders(gate), some...)
			}
		}
		return nil
	})
	return err
}

// Renew implements limiter.Limiter. A slot that is not there any more is counted again when it is renewed for the second
// time without being there, or while gates are closed after a loss: its holder runs, and nobody may take its place. A round
// trip for a thousand slots.
func (l *Limiter) Renew(ctx context.Context, held []limiter.Slot, lease time.Duration) error {
	if len(held) == 0 {
		return nil
	}
	if err := l.dismiss(ctx); err != nil {
		return fmt.Errorf("redislimiter: renew slots: %w", err)
	}
	known, lost := l.known(), false
	for some := range slices.Chunk(held, page) {
		strange, err := l.renew(ctx, known, some, lease)
		if err != nil {
			return wrap(fmt.Sprintf("renew %d slots", len(held)), err)
		}
		lost = lost || strange
	}
	l.forgetMissing()
	if lost {
		if _, err := l.recover(ctx, known); err != nil {
			return wrap("renew slots", err)
		}
	}
	return nil
}

// renew renews a page, and reports whether other counters than the known ones were found.
func (l *Limiter) renew(ctx context.Context, known string, held []limiter.Slot, lease time.Duration) (strange bool, err error) {
	keys := []string{l.limits(), l.used()}
	slots := make([]slot, len(held))
	var gates, each []any
	gateAt := map[string]int{}
	again := l.missed()
	for i, h := range held {
		s := l.slot(h)
		slots[i] = s
		if _, ok := gateAt[s.gate]; !ok {
			gates, keys = append(gates, s.gate), append(keys, l.holders(s.gate))
			gateAt[s.gate] = len(gates)
		}
		putBack := 0
		if _, ok := again[s]; ok {
			putBack = 1
		}
		each = append(each, gateAt[s.gate], s.row, putBack)
	}
	args := append(append([]any{lease.Microseconds(), len(gates)}, gates...), each...)
	reply, err := l.run(ctx, renewScript, known, keys, args...).Slice()
	if err != nil {
		return false, err
	}
	return l.strange(known, reply[0]), l.miss(slots, reply[1:])
}

func (l *Limiter) missed() map[slot]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.missing)
}

// miss remembers which of the slots renewed were not there, by their numbers from 1 on.
func (l *Limiter) miss(slots []slot, numbers []any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		delete(l.missing, s)
	}
	for _, one := range numbers {
		at, ok := one.(int64)
		if !ok || at < 1 || int(at) > len(slots) {
			return fmt.Errorf("unexpected answer %v", numbers)
		}
		l.missing[slots[at-1]] = time.Now()
	}
	return nil
}

// forgetMissing drops what was missing long ago and not renewed since: it has been given back.
func (l *Limiter) forgetMissing() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s, since := range l.missing {
		if time.Since(since) > 2*l.options.Lease {
			delete(l.missing, s)
		}
	}
}

// Reconcile implements limiter.Limiter. Healed are the slots whose lease has ended and that no admission has removed before.
// A round trip or two for a thousand keys.
func (l *Limiter) Reconcile(ctx context.Context) (limiter.Reconciled, error) {
	var total limiter.Reconciled
	if err := l.dismiss(ctx); err != nil {
		return total, fmt.Errorf("redislimiter: reconcile: %w", err)
	}
	if _, err := l.SyncConfig(ctx, limiter.Config{}); err != nil { // which notices a loss
		return total, err
	}
	known := l.known()
	err := pages(func(cursor uint64) ([]string, uint64, error) {
		return l.client.SScan(ctx, l.used(), cursor, "", page).Result()
	}, func(gates []string) error {
		healed, swept, err := l.sweepGates(ctx, known, gates)
		total = total.Add(limiter.Reconciled{Healed: healed, Swept: swept})
		return err
	})
	if err != nil {
		return total, wrap("reconcile gates", err)
	}
	err = pages(func(cursor uint64) ([]string, uint64, error) {
		pairs, next, err := l.client.HScan(ctx, l.buckets(), cursor, "", page).Result()
		keys := make([]string, 0, len(pairs)/2)
		for i := 0; i+1 < len(pairs); i += 2 {
			keys = append(keys, pairs[i])
		}
		return keys, next, err
	}, func(rates []string) error {
		swept, err := l.run(ctx, sweepRatesScript, known, []string{l.limits(), l.buckets()}, anys(rates)...).Int()
		total.Swept += swept
		return err
	})
	if err != nil {
		return total, wrap("sweep the buckets of rate limits", err)
	}
	return total, nil
}

func (l *Limiter) sweepGates(ctx context.Context, known string, gates []string) (healed, swept int, err error) {
	keys := []string{l.limits(), l.used()}
	for _, gate := range gates {
		keys = append(keys, l.holders(gate))
	}
	reply, err := l.run(ctx, sweepGatesScript, known, keys, anys(gates)...).Int64Slice()
	if err != nil {
		return 0, 0, err
	}
	if len(reply) != 2 {
		return 0, 0, fmt.Errorf("unexpected answer %v", reply)
	}
	return int(reply[0]), int(reply[1]), nil
}

// pages does something with each page of a scan, also with one that is larger than asked for.
func pages(scan func(cursor uint64) (found []string, next uint64, err error), do func([]string) error) error {
	for cursor := uint64(0); ; {
		found, next, err := scan(cursor)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(found, page) {
			if err := do(some); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

func anys(texts []string) []any {
	out := make([]any, len(texts))
	for i, s := range texts {
		out[i] = s
	}
	return out
}
