package fsm

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func BenchmarkRun(b *testing.B) {
	next := func(_ context.Context, c *Call[order]) (Outcome, error) {
		c.State.Paid++
		return Next("a"), nil
	}
	plain, timed := machine(next).Spec(), machine(next, StepTimeout(time.Minute)).Spec()
	done := NewJob("j", func(context.Context, *JobCall[order]) (order, error) { return order{}, nil }).Spec()
	for _, bench := range []struct {
		name string
		spec *Spec
		in   *Input
	}{
		{"machine", plain, input()},
		{"timeout", timed, input()},
		{"job", done, &Input{Step: JobStep, State: []byte(`{"id":1}`)}},
		{"signals", plain, &Input{Step: "a", State: []byte(`{"id":1}`), Awaits: []string{"s"}, Inbox: []Signal{{ID: 1, Name: "s"}, {ID: 2, Name: "s"}}}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if res := Run(b.Context(), bench.spec, bench.in); res.Ending != Finished || res.Err != nil {
					b.Fatal(res.Err)
				}
			}
		})
	}
}

func BenchmarkInsertion(b *testing.B) {
	m := machine(stub[order])
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.New(order{ID: 1}, CorrelationKey("order:1")).Insertion(Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckJSON(b *testing.B) {
	text, _ := json.Marshal(map[string]any{
		"a": strings.Repeat("x", 500), "n": []int{1, 22, 333}, "s": strings.Split(strings.Repeat("word ", 80), " "),
	})
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if err := checkJSON("payload", text, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}
