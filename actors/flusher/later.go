package flusher

import (
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// later announces children that become eligible later, the earliest of each queue: what follows it is found by the claim that
// takes it. pg.Flushed.Woken names only queues that have work now.
func (w *writer) later(outcomes []pg.Outcome, verdicts []pg.Verdict) {
	if w.Poke == nil {
		return
	}
	var earliest map[string]time.Duration
	for i, v := range verdicts {
		if v.Fate != pg.Committed || outcomes[i].Kind != pg.KindChildren {
			continue
		}
		for c := range outcomes[i].Children {
			child := &outcomes[i].Children[c]
			in := child.Delay
			if !child.EligibleAt.IsZero() {
				in = time.Until(child.EligibleAt)
			}
			if in <= 0 {
				continue
			}
			if earliest == nil {
				earliest = map[string]time.Duration{}
			}
			if known, ok := earliest[child.Queue]; !ok || in < known {
				earliest[child.Queue] = in
			}
		}
	}
	for queue, in := range earliest {
		w.root.Send(w.Poke, actors.Announce{Queues: []string{queue}, In: in})
	}
}
