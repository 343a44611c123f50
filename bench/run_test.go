package main

import (
	"slices"
	"testing"

	"github.com/gendurable/gendurable/bench/workload"
)

func TestOrderRotates(t *testing.T) {
	for round, want := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}, {0, 1, 2}} {
		if got := order(3, round); !slices.Equal(got, want) {
			t.Errorf("round %d runs %v, want %v", round, got, want)
		}
	}
}

func chosen(t *testing.T, p *plan, name string) (names []string) {
	t.Helper()
	ws, err := workload.Select([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range p.contenders(ws[0]) {
		names = append(names, c.Name())
	}
	return names
}

func TestContenders(t *testing.T) {
	for _, c := range []struct {
		about    string
		plan     plan
		workload string
		want     []string
	}{
		{"one peer", plan{peers: []string{"river"}}, "jobs",
			[]string{"floor", "gendurable default", "gendurable tuned", "river default", "river tuned"}},
		{"no peers", plan{peers: []string{"none"}}, "jobs", []string{"floor", "gendurable default", "gendurable tuned"}},
		{"by name", plan{only: []string{"gendurable tuned", "floor"}}, "jobs", []string{"floor", "gendurable tuned"}},
		{"long ones without peers", plan{}, "nodes-2", []string{"gendurable default", "gendurable tuned"}},
		{"smoke", plan{smoke: true}, "fan-out", []string{"floor", "gendurable default"}},
		{"smoke, tuned only", plan{smoke: true}, "memory", []string{"gendurable tuned"}},
		{"smoke with peers", plan{smoke: true}, "jobs",
			[]string{"floor", "gendurable default", "gendurable tuned", "river tuned", "dbos tuned", "go-workflows tuned"}},
	} {
		if got := chosen(t, &c.plan, c.workload); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.about, got, c.want)
		}
	}
}
