package gendurable

import (
	"slices"
	"sync"

	"github.com/gendurable/gendurable/pg"
)

// unfit collects the steps that this process's schedulers leave out of their claims. It is safe for concurrent use.
type unfit struct {
	mu      sync.Mutex
	byQueue map[string][]pg.StepRef
}

func newUnfit() *unfit { return &unfit{byQueue: make(map[string][]pg.StepRef)} }

// set notes what one queue leaves out.
func (u *unfit) set(queue string, steps []pg.StepRef) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.byQueue[queue] = steps
}

// list returns the steps as the node's row has them, each once.
func (u *unfit) list() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []string
	for _, steps := range u.byQueue {
		for _, s := range steps {
			out = append(out, stepText(s))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
