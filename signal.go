package gendurable

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/pg"
)

// SignalOption is an option of Signal.
type SignalOption = instance.SignalOption

// DedupKey makes a repeated delivery a no-op: a key is accepted once for a target as long as the target exists,
// also after the first signal was consumed.
func DedupKey(key string) SignalOption { return instance.DedupKey(key) }

// Delivery is one signal of SignalMany.
type Delivery = instance.Delivery

// SignalResult answers one Delivery.
type SignalResult = instance.SignalResult

// Signal puts a signal into the inbox of a live instance and wakes it if it awaits that name. It fails with
// ErrNoTarget, and stores nothing, when the target is unknown or terminal. A signal that arrives before the
// instance awaits it stays in the inbox. A repeated DedupKey is not an error.
func (c *Client) Signal(ctx context.Context, to Ref, name string, payload any, opts ...SignalOption) error {
	return c.signalOne(ctx, c.pool, to, name, payload, opts, c.announceSignals)
}

// SignalTx is Signal in the caller's transaction. The target stays locked until the caller commits or rolls
// back: its next outcome waits meanwhile. Run it in Tx, or call Poke after the commit.
func (c *Client) SignalTx(ctx context.Context, tx pgx.Tx, to Ref, name string, payload any, opts ...SignalOption) error {
	announce := func([]pg.Delivered) {}
	if t, ok := tx.(*announcingTx); ok {
		announce = func(answers []pg.Delivered) {
			for _, q := range wokenQueues(answers) {
				t.wakes = append(t.wakes, wake{queue: q})
			}
		}
	}
	return c.signalOne(ctx, tx, to, name, payload, opts, announce)
}

// SignalMany delivers any number of signals in one round trip and answers one by one, in order. An invalid
// delivery fails the whole call before anything is sent.
func (c *Client) SignalMany(ctx context.Context, deliveries []Delivery) ([]SignalResult, error) {
	rows := make([]pg.Delivery, len(deliveries))
	for i, d := range deliveries {
		row, err := c.delivery(d)
		if err != nil {
			return nil, fmt.Errorf("delivery %d of %d: %w", i, len(deliveries), err)
		}
		rows[i] = row
	}
	if len(rows) == 0 {
		return nil, nil
	}
	call := c.tracer.Signal(ctx, rows[0].Name, len(rows))
	if traceparent := call.TraceContext(); traceparent != "" {
		for i := range rows {
			rows[i].TraceContext = traceparent
		}
	}
	answers, err := c.store.Signal(ctx, c.pool, rows)
	call.End(err)
	if err != nil {
		return nil, fmt.Errorf("gendurable: deliver %d signals: %w", len(rows), err)
	}
	c.announceSignals(answers)
	results := make([]SignalResult, len(answers))
	for i, a := range answers {
		results[i] = SignalResult{Target: ID(a.TargetID), Duplicate: a.Duplicate}
		if a.TargetID == 0 {
			results[i].Err = noTarget(deliveries[i].To)
		}
	}
	return results, nil
}

func (c *Client) signalOne(ctx context.Context, db pg.DB, to Ref, name string, payload any, opts []SignalOption,
	announce func([]pg.Delivered)) error {
	d := Delivery{To: to, Name: name, Payload: payload}
	for _, opt := range opts {
		opt(&d)
	}
	row, err := c.delivery(d)
	if err != nil {
		return err
	}
	call := c.tracer.Signal(ctx, name, 1)
	row.TraceContext = call.TraceContext()
	answers, err := c.store.Signal(ctx, db, []pg.Delivery{row})
	if err != nil {
		call.End(err)
		return fmt.Errorf("gendurable: signal %q: %w", name, err)
	}
	if answers[0].TargetID == 0 {
		err := noTarget(to)
		call.End(err)
		return err
	}
	call.Delivered(answers[0].TargetID)
	call.End(nil)
	announce(answers)
	return nil
}

func noTarget(to Ref) error { return fmt.Errorf("%w: %v", ErrNoTarget, describe(to)) }

func describe(ref Ref) string { return instance.Describe(ref) }

// delivery validates and encodes one signal.
func (c *Client) delivery(d Delivery) (pg.Delivery, error) {
	id, key, err := address(d.To)
	if err != nil {
		return pg.Delivery{}, err
	}
	if err := fsm.CheckName("signal name", d.Name); err != nil {
		return pg.Delivery{}, err
	}
	if d.DedupKey != "" {
		if err := fsm.CheckKey("dedup key", d.DedupKey); err != nil {
			return pg.Delivery{}, err
		}
	}
	if d.Payload == nil {
		d.Payload = struct{}{}
	}
	payload, err := fsm.EncodePayload("signal payload", d.Payload, c.limits)
	if err != nil {
		return pg.Delivery{}, err
	}
	return pg.Delivery{ID: id, Key: key, Name: d.Name, Payload: payload, DedupKey: d.DedupKey}, nil
}

func (c *Client) announceSignals(answers []pg.Delivered) {
	if queues := wokenQueues(answers); len(queues) > 0 {
		c.announce(queues, 0)
	}
}

// wokenQueues lists the queues of the woken targets, each once.
func wokenQueues(answers []pg.Delivered) []string {
	var queues []string
	for _, a := range answers {
		if a.Woken && !slices.Contains(queues, a.Queue) {
			queues = append(queues, a.Queue)
		}
	}
	return queues
}
