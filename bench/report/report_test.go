package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gendurable/gendurable/bench/lab"
	"github.com/gendurable/gendurable/bench/workload"
)

func trials(figures ...float64) (all []workload.Measure) {
	for _, f := range figures {
		all = append(all, workload.Measure{
			Figure: f, Units: 10, Cost: lab.Cost{Postgres: f / 1e5, WAL: 5_000, Commits: 20},
			Throughput: []workload.Point{{At: 0, Value: f}, {At: 1, Value: f}}, Latencies: []float64{1, 2, f},
			More: map[string]float64{"p99 ms": f},
		})
	}
	return all
}

func block() *Block {
	return &Block{Workload: "jobs", Title: "Jobs", Unit: "jobs/s", Per: "job", Rows: []*Row{
		{Contender: "floor", Role: "floor", Trials: trials(100, 300, 200)},
		{Contender: "gendurable default", Role: "gendurable", Trials: trials(120, 80)},
		{Contender: "river default", Role: "peer", Failed: "no | luck"},
	}}
}

func TestSummarize(t *testing.T) {
	b := block()
	b.Summarize()
	floor, ours := b.Rows[0].Summary, b.Rows[1].Summary
	if floor.Median != 200 || floor.Min != 100 || floor.Max != 300 || floor.Spread != 1 || floor.ToFloor != 1 {
		t.Errorf("the floor's summary is %+v", floor)
	}
	if ours.Median != 100 || ours.ToFloor != 0.5 {
		t.Errorf("our summary is %+v, want a median of 100, half of the floor", ours)
	}
	if floor.WALBytes != 500 || floor.Commits != 2 || floor.PostgresMicros != 200 || floor.More["p99 ms"] != 200 {
		t.Errorf("the floor's costs are %+v, want them per unit", floor)
	}
}

func TestLowerIsBetter(t *testing.T) {
	b := block()
	b.Lower = true
	b.Summarize()
	if got := b.Rows[1].Summary.ToFloor; got != 2 {
		t.Errorf("half the floor's time is %v of its speed, want 2", got)
	}
}

func TestRatioBlocksHaveNoFloor(t *testing.T) {
	b := block()
	b.Ratio = true
	b.Summarize()
	if got := b.Rows[1].Summary.ToFloor; got != 0 {
		t.Errorf("÷ floor is %v, want none", got)
	}
}

func TestAbsurd(t *testing.T) {
	b := block()
	b.Rows = append(b.Rows, &Row{Contender: "gendurable tuned", Role: "gendurable", Trials: trials(1)})
	b.Summarize()
	got := strings.Join((&Report{Blocks: []*Block{b}}).Absurd(), "\n")
	for _, want := range []string{"river default: no | luck", "gendurable tuned: less than"} {
		if !strings.Contains(got, want) {
			t.Errorf("Absurd does not say %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "gendurable default") {
		t.Errorf("half of the floor is not absurd:\n%s", got)
	}
	b.Forget()
	for i, row := range b.Rows {
		if row.Failed != "" || len(row.Trials) > 0 {
			t.Errorf("it remembers %+v", row)
		}
		b.Rows[i].Trials = trials(1)
	}
	if b.Summarize(); len(b.Absurd()) > 0 {
		t.Errorf("what it has forgotten is still absurd: %v", b.Absurd())
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{1, 2}, 1.5}, {[]float64{1, 2, 9}, 2}} {
		if got := Median(c.of); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.of, got, c.want)
		}
	}
}

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.00123: "0.00123", 1.5: "1.5", 12.34: "12.3", 123.4: "123", 1234.5: "1,230", 1234567: "1,230,000", -1234567: "-1,230,000",
	} {
		if got := Figure(v); got != want {
			t.Errorf("Figure(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestTableAndCharts(t *testing.T) {
	b := block()
	b.Summarize()
	r := &Report{Blocks: []*Block{b}}
	for _, markdown := range []bool{false, true} {
		var out strings.Builder
		r.WriteTable(&out, markdown)
		for _, want := range []string{"gendurable default", "0.5", "failed"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the table does not contain %q:\n%s", want, out.String())
			}
		}
	}
	dir := t.TempDir()
	if err := r.WriteCharts(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"jobs-throughput.svg", "jobs-latency.svg"} {
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(raw), "<svg") {
			t.Errorf("%s is no SVG file (%v)", name, err)
		}
	}
}
