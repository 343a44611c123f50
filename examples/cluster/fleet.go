package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/term"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

type options struct {
	nodes, lanes            int
	ttl, kill, restart, end time.Duration
	out                     io.Writer
	// saw, if not nil, is told at each look which lanes each living node serves; the test listens.
	saw func(lanes map[int][]string)
}

// fleet is the conductor: a node without queues, which inserts work and watches the others.
type fleet struct {
	options
	url    string
	engine *gendurable.Engine
	nodes  []*process
	before map[*process]int64 // steps at the last look
	table  *table
}

func run(ctx context.Context, o options) error {
	return devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error { return conduct(ctx, pool, o) })
}

func conduct(ctx context.Context, pool *pgxpool.Pool, o options) (err error) {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	f := &fleet{options: o, url: pool.Config().ConnString(), before: map[*process]int64{}, table: newTable(o.out)}
	defer func() {
		for _, p := range f.nodes {
			p.terminate()
		}
	}()
	for i := range o.nodes {
		p, err := o.start(i+1, f.url)
		if err != nil {
			return err
		}
		f.nodes = append(f.nodes, p)
	}
	f.engine, err = gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{work}, InsertQueues: []string{"work"},
		Role: cluster.RoleInsertOnly, Cluster: &cluster.Config{TTL: o.ttl}, Logger: quiet(),
	})
	if err != nil {
		return err
	}
	defer func() { _ = f.engine.Stop(context.WithoutCancel(ctx)) }()
	return f.watch(ctx)
}

// watch keeps the nodes busy, shows what they do, and kills one when it is time.
func (f *fleet) watch(ctx context.Context) error {
	began := time.Now()
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	victim, killed := f.nodes[len(f.nodes)/2], time.Time{}
	for last := began; ; {
		select {
		case <-ctx.Done():
			return nil
		case now := <-look.C:
			if err := f.load(ctx); err != nil {
				return fmt.Errorf("insert work: %w", err)
			}
			f.show(now.Sub(began), now.Sub(last))
			last = now
		}
		at := time.Since(began)
		switch {
		case f.end > 0 && at > f.end:
			return nil
		case f.kill > 0 && killed.IsZero() && at > f.kill:
			f.table.say(fmt.Sprintf("kill -9 of node %d", victim.number))
			victim.kill()
			killed = time.Now()
		case !killed.IsZero() && victim != nil && time.Since(killed) > f.restart:
			f.table.say(fmt.Sprintf("node %d starts again", victim.number))
			p, err := f.start(victim.number, f.url)
			if err != nil {
				return err
			}
			f.nodes[slices.Index(f.nodes, victim)] = p
			victim = nil
		}
	}
}

// load keeps some seconds of work in the queue.
func (f *fleet) load(ctx context.Context) error {
	insts := make([]fsm.Instance, 50*f.lanes)
	for i := range insts {
		insts[i] = work.New(task{Number: i})
	}
	_, err := f.engine.InsertMany(ctx, insts)
	return err
}

// show shows one line for each node.
func (f *fleet) show(at, since time.Duration) {
	serves := map[string][]string{}
	for _, m := range f.engine.Members() {
		serves[m.Address] = m.Lanes
	}
	seen := map[int][]string{}
	lines := []string{fmt.Sprintf("%5.1f s   %d members", at.Seconds(), len(serves))}
	for _, p := range f.nodes {
		address, steps, alive := p.state()
		rate := float64(steps-f.before[p]) / since.Seconds()
		f.before[p] = steps
		lanes := numbers(serves[address])
		if alive {
			seen[p.number] = serves[address]
			lines = append(lines, fmt.Sprintf("node %d   pid %-8d %7.0f steps/s   lanes %s", p.number, p.cmd.Process.Pid, rate, lanes))
		} else {
			lines = append(lines, fmt.Sprintf("node %d   dead         %7.0f steps/s   lanes %s", p.number, 0.0, lanes))
		}
	}
	f.table.show(lines)
	if f.saw != nil {
		f.saw(seen)
	}
}

// numbers are the numbers of lanes.
func numbers(lanes []string) string {
	var out []string
	for _, lane := range lanes {
		_, n, _ := strings.Cut(lane, "#")
		out = append(out, n)
	}
	if len(out) == 0 {
		return "–"
	}
	return strings.Join(out, " ")
}

// table draws over its last lines on a terminal, and prints lines elsewhere.
type table struct {
	out   io.Writer
	live  bool
	drawn int
}

func newTable(out io.Writer) *table {
	file, ok := out.(*os.File)
	return &table{out: out, live: ok && term.IsTerminal(int(file.Fd()))}
}

func (t *table) show(lines []string) {
	if t.live && t.drawn > 0 {
		fmt.Fprintf(t.out, "\x1b[%dA", t.drawn)
	}
	for _, line := range lines {
		if t.live {
			line += "\x1b[K"
		}
		fmt.Fprintln(t.out, line)
	}
	t.drawn = len(lines)
}

// say prints a line that stays.
func (t *table) say(line string) {
	fmt.Fprintln(t.out, line)
	t.drawn = 0
}
