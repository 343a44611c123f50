// The benchmark: gendurable beside what Postgres can do at best, and beside its peers. `make bench` in the parent
// directory runs it; see ../PERFORMANCE.md for how to read its figures.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/gendurable/gendurable/bench/lab"
	"github.com/gendurable/gendurable/bench/report"
	"github.com/gendurable/gendurable/bench/system"
	"github.com/gendurable/gendurable/bench/workload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	var err error
	if len(os.Args) == 3 && os.Args[1] == workload.ChildFlag {
		err = workload.Child(ctx, os.Args[2], log)
	} else {
		err = bench(ctx, log)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	workloads, peers, only, out, cpu string
	rounds                           int
	window, long                     time.Duration
	smoke, profile, list, verbose    bool
}

func parse() (o options) {
	flag.StringVar(&o.workloads, "workload", "", "workloads or groups of them, by comma; empty = all that do not run by name only")
	flag.StringVar(&o.peers, "peers", "", "peers, by comma; empty = all, none = none")
	flag.StringVar(&o.only, "only", "", "run these contenders only, such as \"gendurable tuned\", by comma")
	flag.StringVar(&o.out, "out", "results", "directory for the JSON file and the charts")
	flag.StringVar(&o.cpu, "cpuprofile", "", "write a CPU profile of this process, which is the client's side, to this file")
	flag.IntVar(&o.rounds, "rounds", 5, "interleaved rounds")
	flag.DurationVar(&o.window, "window", 5*time.Second, "how long a trial is measured")
	flag.DurationVar(&o.long, "long", 10*time.Minute, "how long a trial of the workloads sustained is measured")
	flag.BoolVar(&o.smoke, "smoke", false, "run every workload for a moment, and fail when one does not complete or is absurdly slow")
	flag.BoolVar(&o.profile, "statements", false, "load pg_stat_statements and show where the server's time goes")
	flag.BoolVar(&o.verbose, "v", false, "show what peers log as errors, too")
	flag.BoolVar(&o.list, "list", false, "list workloads and contenders")
	flag.Parse()
	return o
}

func bench(ctx context.Context, log *slog.Logger) (err error) {
	o := parse()
	if o.list {
		list()
		return nil
	}
	p, err := o.plan(log)
	if err != nil {
		return err
	}
	if o.cpu != "" {
		f, err := os.Create(o.cpu)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	server, err := lab.Start(ctx, o.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	r, err := p.run(ctx, server)
	if err != nil {
		return err
	}
	if err := write(r, o.out); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: what was written is incomplete")
	}
	if problems := r.Absurd(); o.smoke && len(problems) > 0 {
		return errors.New("the smoke run found:\n  " + strings.Join(problems, "\n  "))
	}
	return nil
}

func (o *options) plan(log *slog.Logger) (*plan, error) {
	p := &plan{
		rounds: o.rounds, window: o.window, long: o.long, smoke: o.smoke, profile: o.profile, verbose: o.verbose,
		progress: os.Stderr, log: log, only: words(o.only),
	}
	if o.smoke {
		p.rounds, p.window, p.long = 1, 400*time.Millisecond, 2*time.Second
	}
	if o.peers != "" {
		p.peers = words(o.peers)
	}
	var err error
	if p.workloads, err = workload.Select(words(o.workloads)); err == nil && o.smoke && o.workloads == "" {
		p.workloads = workload.All()
	}
	return p, err
}

func words(list string) (words []string) {
	for w := range strings.SplitSeq(list, ",") {
		if w = strings.TrimSpace(w); w != "" {
			words = append(words, w)
		}
	}
	return words
}

// write prints the table and writes it, the JSON file and the charts into a directory.
func write(r *report.Report, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bench.json"), raw, 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "bench.md"))
	if err != nil {
		return err
	}
	defer f.Close()
	r.WriteTable(f, true)
	if err := r.WriteCharts(dir); err != nil {
		return err
	}
	r.WriteTable(os.Stdout, false)
	fmt.Printf("written to %s: bench.json, bench.md and charts\n", dir)
	return nil
}

func list() {
	for _, w := range workload.All() {
		by := ""
		if w.OnlyByName {
			by = " (by name only)"
		}
		fmt.Printf("%-16s %s%s\n", w.Name, w.Title, by)
	}
	fmt.Println()
	for _, c := range system.All() {
		fmt.Printf("%-22s %s\n", c.Name(), c.Note)
	}
}
