package workload

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gendurable/gendurable/bench/system"
)

func names(ws []Workload) (all []string) {
	for _, w := range ws {
		all = append(all, w.Name)
	}
	return all
}

func TestSelect(t *testing.T) {
	whole, err := Select(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range whole {
		if w.OnlyByName {
			t.Errorf("%s is part of the whole, although it is to run by name only", w.Name)
		}
	}
	group, err := Select([]string{"nodes", "jobs"})
	if err != nil || len(group) != 4 {
		t.Errorf("Select(nodes, jobs) = %v, %v, want four", names(group), err)
	}
	if _, err := Select([]string{"nonsense"}); err == nil {
		t.Error("an unknown workload was accepted")
	}
}

// TestEveryContenderTakesPart finds a configuration that no workload measures, and a workload without the floor or us.
func TestEveryContenderTakesPart(t *testing.T) {
	took := map[string]int{}
	for _, w := range All() {
		roles := map[system.Role]bool{}
		for _, c := range system.All() {
			if w.Fits(c, c.New(system.Conf{})) && c.Does(w.Name) {
				took[c.Name()]++
				roles[c.Role] = true
			}
		}
		if !roles[system.Ours] {
			t.Errorf("gendurable has no part in %s", w.Name)
		}
	}
	for _, c := range system.All() {
		if took[c.Name()] == 0 {
			t.Errorf("%s takes no part in anything", c.Name())
		}
	}
}

func TestQuantile(t *testing.T) {
	if got := Quantile(nil, 0.5); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
	values := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for q, want := range map[float64]float64{0: 1, 0.5: 6, 0.99: 10, 1: 10} {
		if got := Quantile(values, q); got != want {
			t.Errorf("Quantile(%v) = %v, want %v", q, got, want)
		}
	}
}

func TestRate(t *testing.T) {
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	lasted := span{first: at(2), last: at(11), total: 101, after: 90}
	if got := lasted.rate(start, at(11), 1000); got != 10 {
		t.Errorf("a backlog that lasted: %v a second, want 10 from the first completion on", got)
	}
	drained := span{first: at(2), last: at(4), total: 100, after: 99}
	if got := drained.rate(start, at(11), 100); got != 25 {
		t.Errorf("a backlog that was drained: %v a second, want 25 from the start on", got)
	}
}

func TestSized(t *testing.T) {
	trial := &Trial{
		Window: 2 * time.Second, Recall: map[string]float64{},
		Contender: system.Contender{Role: system.Floor},
	}
	if got := trial.sized(1000, 1.5, 10); got != 3000 {
		t.Errorf("sized = %d, want 3000", got)
	}
	trial.learn(100, 200)
	if got := trial.sized(1000, 1.5, 10); got != 1500 {
		t.Errorf("on a machine of half the speed sized = %d, want 1500", got)
	}
	if got := trial.sized(0, 1, 10); got != 10 {
		t.Errorf("sized = %d, want the least", got)
	}
}

func TestLoadGivesUpOnASlowMachine(t *testing.T) {
	trial := &Trial{Window: time.Nanosecond}
	loaded, err := trial.load(t.Context(), 10_000, func(context.Context, int) error { return nil })
	if err != nil || loaded != 500 {
		t.Errorf("load = %d, %v, want one part", loaded, err)
	}
}

func TestJudge(t *testing.T) {
	var samples []sample
	for i := range 20 {
		samples = append(samples, sample{at: float64(i), rate: 100 - float64(i), p99: float64(i), table: 10, indexes: 5})
	}
	var m Measure
	m.judge(samples)
	if want := (82.0 + 81.0) / (98.0 + 97.0); m.Figure != want {
		t.Errorf("the last tenth by the second is %v, want %v", m.Figure, want)
	}
	if m.More["table, last ÷ second"] != 1 || m.More["p99 ms, last tenth"] != 18.5 {
		t.Errorf("further figures: %v", m.More)
	}
}

func TestSend(t *testing.T) {
	var mu sync.Mutex
	seen := map[int]int{}
	err := send(1234, 100, func(from, to int) error {
		mu.Lock()
		defer mu.Unlock()
		for i := from; i < to; i++ {
			seen[i]++
		}
		return nil
	})
	if err != nil || len(seen) != 1234 {
		t.Errorf("send reached %d of 1234, %v", len(seen), err)
	}
	broken := errors.New("broken")
	if err := send(1234, 1, func(int, int) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("send = %v, want the error", err)
	}
}
