package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gendurable/gendurable/bench/lab"
	"github.com/gendurable/gendurable/bench/report"
	"github.com/gendurable/gendurable/bench/system"
	"github.com/gendurable/gendurable/bench/workload"
)

// plan is what a run does.
type plan struct {
	workloads []workload.Workload
	// peers are the systems to compare with; nil means all. The floor and gendurable always run.
	peers    []string
	only     []string // if not empty, the contenders to run, by system or full name
	rounds   int
	window   time.Duration
	long     time.Duration // of the workloads sustained
	smoke    bool
	profile  bool
	verbose  bool
	progress io.Writer
	log      *slog.Logger
}

// run does the trials: the rounds of a workload are interleaved, so that what disturbs the machine for a while does
// not fall on one contender alone. When ctx ends, the report has what was measured until then.
func (p *plan) run(ctx context.Context, server *lab.Server) (*report.Report, error) {
	env, err := server.Environment(ctx)
	if err != nil {
		return nil, err
	}
	r := &report.Report{Environment: env, Rounds: p.rounds, WindowS: p.window.Seconds(), Smoke: p.smoke}
	for _, w := range p.workloads {
		block := &report.Block{Workload: w.Name, Title: w.Title, Unit: w.Unit, Per: w.Per, Lower: w.Lower, Ratio: w.Ratio}
		r.Blocks = append(r.Blocks, block)
		contenders := p.contenders(w)
		for _, c := range contenders {
			block.Rows = append(block.Rows, &report.Row{Contender: c.Name(), Role: string(c.Role), Note: c.Note})
		}
		p.rotate(ctx, server, w, contenders, block)
		// A machine that stands still for seconds can make nonsense of a trial of half a second. It does not do that each time.
		for tries := 1; p.smoke && tries < smokeTries && ctx.Err() == nil; tries++ {
			problems := block.Absurd()
			if len(problems) == 0 {
				break
			}
			fmt.Fprintf(p.progress, "%-14s again, because of %s\n", w.Name, strings.Join(problems, "; "))
			block.Forget()
			p.rotate(ctx, server, w, contenders, block)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return r, nil
}

// smokeTries is how often a workload may fail in a smoke run before the run does; smokePatience is for how long one of its
// trials, of about a second, may take before it has failed.
const (
	smokeTries    = 3
	smokePatience = 2 * time.Minute
)

// rotate does the rounds of a workload, as far as ctx lets it, and summarizes them.
func (p *plan) rotate(ctx context.Context, server *lab.Server, w workload.Workload, contenders []system.Contender, block *report.Block) {
	defer block.Summarize()
	recall := map[string]float64{}
	rounds := p.rounds
	if w.OnlyByName {
		rounds = 1
	}
	for round := range rounds {
		for _, i := range order(len(contenders), round) {
			if ctx.Err() != nil {
				return
			}
			p.trial(ctx, server, w, contenders[i], block.Rows[i], recall)
		}
	}
}

// order is the order of a round: each begins with another contender, except that the first begins with the first.
func order(n, round int) []int {
	indexes := make([]int, n)
	for i := range indexes {
		indexes[i] = (i + round) % n
	}
	return indexes
}

// trial runs one contender once. A failure is the row's, not the run's.
func (p *plan) trial(ctx context.Context, server *lab.Server, w workload.Workload, c system.Contender, row *report.Row, recall map[string]float64) {
	if row.Failed != "" && c.Role == system.Peer {
		return // it would fail again, and take its time
	}
	window := p.window
	if w.Group == "sustained" {
		window = p.long
	}
	t := &workload.Trial{
		Contender: c, Server: server, Window: window, Smoke: p.smoke, Log: p.log, Recall: recall,
	}
	if c.Role == system.Peer && !p.verbose {
		t.Log = slog.New(slog.DiscardHandler) // their shutdown logs errors that concern nobody
	}
	if p.profile {
		t.Profile = p.statements
	}
	start := time.Now()
	run, cancel := ctx, context.CancelFunc(func() {})
	if p.smoke {
		run, cancel = context.WithTimeout(ctx, smokePatience)
	}
	m, err := w.Run(run, t)
	cancel()
	took := time.Since(start).Seconds()
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if row.Failed == "" {
			row.Failed = firstLine(err.Error())
		}
		fmt.Fprintf(p.progress, "%-14s %-22s failed after %.1f s: %v\n", w.Name, c.Name(), took, err)
		return
	}
	row.Trials = append(row.Trials, m)
	fmt.Fprintf(p.progress, "%-14s %-22s %10s %-12s (%.1f s)\n", w.Name, c.Name(), report.Figure(m.Figure), w.Unit, took)
}

// contenders are those that can do the workload and are asked for.
func (p *plan) contenders(w workload.Workload) (chosen []system.Contender) {
	for _, c := range system.All() {
		wanted := c.Role != system.Peer || (!w.OnlyByName && (p.peers == nil || slices.Contains(p.peers, c.System)))
		if len(p.only) > 0 {
			wanted = slices.Contains(p.only, c.System) || slices.Contains(p.only, c.Name())
		}
		if p.smoke && c.Role == system.Peer && (w.Name != "jobs" || c.Config != "tuned") {
			wanted = false // that they still work is shown by one workload
		}
		if wanted && w.Fits(c, c.New(system.Conf{Log: p.log})) && c.Does(w.Name) {
			chosen = append(chosen, c)
		}
	}
	if p.smoke && w.Name != "jobs" { // one configuration of ours is enough elsewhere
		ours := 0
		chosen = slices.DeleteFunc(chosen, func(c system.Contender) bool {
			if c.Role == system.Ours {
				ours++
			}
			return c.Role == system.Ours && ours > 1
		})
	}
	return chosen
}

// statements prints where the server's time went.
func (p *plan) statements(ctx context.Context, db *lab.Database) error {
	top, err := db.Top(ctx, 12)
	for _, s := range top {
		fmt.Fprintf(p.progress, "    %8.0f ms %8d calls %9d rows %6.1f WAL MB  %.110s\n", s.Millis, s.Calls, s.Rows, float64(s.WAL)/1e6, s.Query)
	}
	return err
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
