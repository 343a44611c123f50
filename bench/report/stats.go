// Package report turns trials into a table, a JSON file and charts.
package report

import (
	"math"
	"slices"

	"github.com/gendurable/gendurable/bench/lab"
	"github.com/gendurable/gendurable/bench/workload"
)

// Report is everything a run of the benchmark found.
type Report struct {
	Environment lab.Environment `json:"environment"`
	Rounds      int             `json:"rounds"`
	WindowS     float64         `json:"window_s"`
	Smoke       bool            `json:"smoke,omitempty"`
	Blocks      []*Block        `json:"workloads"`
}

// Block is one workload.
type Block struct {
	Workload string `json:"workload"`
	Title    string `json:"title"`
	Unit     string `json:"unit"`
	Per      string `json:"per"`
	Lower    bool   `json:"lower_is_better,omitempty"`
	Ratio    bool   `json:"figure_is_a_ratio,omitempty"`
	Rows     []*Row `json:"contenders"`
}

// Row is one contender.
type Row struct {
	Contender string             `json:"contender"`
	Role      string             `json:"role"`
	Note      string             `json:"configuration"`
	Trials    []workload.Measure `json:"trials,omitempty"`
	// Failed is the first error; the row then has no or fewer trials.
	Failed  string  `json:"failed,omitempty"`
	Summary Summary `json:"summary"`
}

// Summary condenses the trials of a row.
type Summary struct {
	Median, Min, Max float64
	// Spread is (Max - Min) / Median.
	Spread float64
	// ToFloor is the median by the floor's, so that more is better; 0 without a floor.
	ToFloor float64
	// PostgresMicros and ClientMicros are CPU µs, WALBytes and Commits are counts, all per unit, medians of the trials.
	PostgresMicros, ClientMicros, WALBytes, Commits float64
	// More are the medians of the further figures.
	More map[string]float64 `json:",omitempty"`
}

// Summarize fills the summaries of a block from its trials.
func (b *Block) Summarize() {
	var floor float64
	for _, r := range b.Rows {
		r.Summary = summarize(r.Trials)
		if r.Role == "floor" && !b.Ratio {
			floor = r.Summary.Median
		}
	}
	for _, r := range b.Rows {
		if b.Lower {
			r.Summary.ToFloor = divide(floor, r.Summary.Median)
		} else {
			r.Summary.ToFloor = divide(r.Summary.Median, floor)
		}
	}
}

func summarize(trials []workload.Measure) (s Summary) {
	if len(trials) == 0 {
		return s
	}
	of := func(f func(workload.Measure) float64) []float64 {
		values := make([]float64, len(trials))
		for i, t := range trials {
			values[i] = f(t)
		}
		slices.Sort(values)
		return values
	}
	perUnit := func(f func(lab.Cost) float64) float64 {
		return Median(of(func(m workload.Measure) float64 { return divide(f(m.Cost), float64(m.Units)) }))
	}
	figures := of(func(m workload.Measure) float64 { return m.Figure })
	s.Median, s.Min, s.Max = Median(figures), figures[0], figures[len(figures)-1]
	s.Spread = divide(s.Max-s.Min, s.Median)
	s.PostgresMicros = perUnit(func(c lab.Cost) float64 { return c.Postgres * 1e6 })
	s.ClientMicros = perUnit(func(c lab.Cost) float64 { return c.Client * 1e6 })
	s.WALBytes = perUnit(func(c lab.Cost) float64 { return float64(c.WAL) })
	s.Commits = perUnit(func(c lab.Cost) float64 { return float64(c.Commits) })
	for name := range trials[0].More {
		if s.More == nil {
			s.More = map[string]float64{}
		}
		s.More[name] = Median(of(func(m workload.Measure) float64 { return m.More[name] }))
	}
	return s
}

// Median is the middle of sorted values, the mean of the two middle ones of an even number, 0 of none.
func Median(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func divide(a, b float64) float64 {
	if b == 0 || math.IsNaN(a) || math.IsNaN(b) {
		return 0
	}
	return a / b
}

// Absurd returns what is wrong with a smoke run: failed rows, and ratios that no noise explains.
func (r *Report) Absurd() (problems []string) {
	for _, b := range r.Blocks {
		problems = append(problems, b.Absurd()...)
	}
	return problems
}

// Absurd is the same of one workload, once it is summarized.
func (b *Block) Absurd() (problems []string) {
	for _, row := range b.Rows {
		s := row.Summary
		switch {
		case row.Failed != "":
			problems = append(problems, b.Workload+": "+row.Contender+": "+row.Failed)
		case len(row.Trials) == 0 || s.Median <= 0 && s.More[workload.Mean] <= 0:
			problems = append(problems, b.Workload+": "+row.Contender+": no figure")
		case row.Role == "gendurable" && s.ToFloor > 0 && s.ToFloor < leastToFloor:
			problems = append(problems, b.Workload+": "+row.Contender+": less than a fiftieth of the floor")
		}
	}
	return problems
}

// Forget makes the workload as it was before its trials.
func (b *Block) Forget() {
	for _, row := range b.Rows {
		row.Trials, row.Failed, row.Summary = nil, "", Summary{}
	}
}

// leastToFloor is far below anything that a busy machine or a short run makes of a healthy engine, and above what it
// comes to when work is only found by a poll.
const leastToFloor = 0.02
