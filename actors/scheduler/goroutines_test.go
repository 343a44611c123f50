package scheduler

import (
	"runtime"
	"sync"
	"testing"
)

func TestGoroutinesAreReusedAndTrimmed(t *testing.T) {
	t.Parallel()
	g := new(goroutines)
	idle := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.idle)
	}
	// together runs n functions at once.
	together := func(n int) {
		var all sync.WaitGroup
		all.Add(n)
		for range n {
			g.Schedule(func() {
				all.Done()
				all.Wait()
			})
		}
		all.Wait()
	}
	together(5)
	eventually(t, "five goroutines are idle", func() bool { return idle() == 5 })
	together(3)
	eventually(t, "they are the same", func() bool { return idle() == 5 })
	g.trim() // before this all were needed
	together(2)
	eventually(t, "all are idle again", func() bool { return idle() == 5 })
	g.trim()
	if n := idle(); n != 2 {
		t.Errorf("%d goroutines are left, two were needed", n)
	}
	g.Schedule(runtime.Goexit) // costs one goroutine, not the dispatcher
	together(4)
	eventually(t, "four goroutines are idle", func() bool { return idle() == 4 })
	g.trim()
	g.close()
	g.trim() // the steps actor may do so while the queue stops
	together(2)
	if n := idle(); n != 0 {
		t.Errorf("%d goroutines are left", n)
	}
}
