package flusher

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// continuation is a row that goes on and whose next step has signals or children to see.
type continuation struct {
	waiter  waiter
	verdict pg.Verdict
}

// handover reads what next steps see and then answers their callers, so that neither the flusher nor the callers with
// nothing to see wait for a read. One goroutine does it, which exists while there is work: rows that come while it
// reads share the next look.
type handover struct {
	w *writer

	mu      sync.Mutex
	waiting []continuation // guarded by mu
	running bool           // guarded by mu: the goroutine exists
}

// add takes over callers.
func (h *handover) add(list []continuation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = append(h.waiting, list...)
	if !h.running {
		h.running = true
		go h.run()
	}
}

func (h *handover) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.running
}

// take returns those that wait; none = the goroutine must end.
func (h *handover) take() []continuation {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.waiting
	h.waiting, h.running = nil, len(list) > 0
	return list
}

func (h *handover) run() {
	for {
		list := h.take()
		if len(list) == 0 {
			break
		}
		rows := make([]pg.Claimed, len(list))
		for i, c := range list {
			rows[i] = pg.Claimed{ID: c.verdict.ID, HasInbox: c.verdict.HasInbox, HasChildren: c.verdict.HasChildren}
		}
		err := h.enrich(list, rows)
		for i, c := range list {
			c.waiter.answer(actors.Committed{Verdict: c.verdict, Next: &rows[i], Err: err})
		}
	}
	if h.w.root != nil {
		h.w.root.Send(h.w.self, sideIdle{}) // a drain may wait for it
	}
}

// enrich reads until it succeeds, the flusher ends, or nobody waits any more. The rows' leases are extended meanwhile.
func (h *handover) enrich(list []continuation, rows []pg.Claimed) error {
	pause := actors.Backoff{First: h.w.Backoff, Max: h.w.MaxBackoff}
	for {
		err := h.look(rows)
		if err == nil {
			return nil
		}
		waited := false
		for _, c := range list {
			waited = waited || !c.waiter.left()
		}
		if h.w.ctx.Err() != nil || !waited {
			return actors.ErrStopped
		}
		h.w.Logger.Debug("gendurable: could not read what a next step sees, trying again", "error", err)
		h.w.sleep(pause.Next())
	}
}

// look reads once; a panic is an error, too.
func (h *handover) look(rows []pg.Claimed) (err error) {
	defer func() {
		if r := recover(); r != nil {
			h.w.Logger.Error("gendurable: reading what next steps see panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic while reading what next steps see: %v", r)
		}
	}()
	return h.w.Rows.Enrich(h.w.ctx, rows)
}
