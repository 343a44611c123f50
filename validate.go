package gendurable

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// problems collects everything that is wrong with a configuration.
type problems struct{ errs []error }

func (p *problems) addf(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
}

func (p *problems) err() error {
	if len(p.errs) == 0 {
		return nil
	}
	return fmt.Errorf("gendurable: the configuration has %d problem(s):\n%w", len(p.errs), errors.Join(p.errs...))
}

// pool checks the host's pool.
func (p *problems) pool(pool *pgxpool.Pool) {
	if pool == nil {
		p.addf("the pool is nil; open one with pgxpool.New")
	}
}

// channel checks that announcements by NOTIFY can have a channel of the engine's name.
func (p *problems) channel(pokes PokeTransport, name string) {
	if pokes == PokePostgres && len(name) > pg.MaxNoticeName {
		p.addf("Name %q: with Pokes %q it has at most %d bytes, because it is part of the name of a channel, which Postgres cuts",
			name, pokes, pg.MaxNoticeName)
	}
}

// listenURL checks the connection string of the listener. The error of a string that cannot be parsed does not show it.
func (p *problems) listenURL(pokes PokeTransport, url string) {
	if url == "" {
		return
	}
	if pokes != PokePostgres {
		p.addf("ListenURL: nothing listens with Pokes %q; it goes with %q", pokes, PokePostgres)
	}
	if _, err := pgx.ParseConfig(url); err != nil {
		p.addf("ListenURL: must be a connection string (the text is not shown, as it may hold a password)")
	}
}

// validate reports every problem of a configuration whose defaults are filled in.
func (c Config) validate(pool *pgxpool.Pool) error {
	p := &problems{}
	p.pool(pool)
	p.name("Name", c.Name, ":@")
	if c.NodeName != "" {
		p.name("NodeName", c.NodeName, "@")
	}
	c.validateTimes(p)
	c.validateQueues(p)
	c.validateFlushers(p)
	c.validateCluster(p)
	p.machines(c.Machines)
	c.validateLimits(p)
	p.crons(c.Crons)
	if c.SweepBatch < 0 {
		p.addf("SweepBatch %d: must be positive", c.SweepBatch)
	}
	if c.InlineLimit < 0 {
		p.addf("InlineLimit %d: must be positive; 1 runs no step inline", c.InlineLimit)
	}
	p.maxPayload(c.MaxPayload)
	if !slices.Contains([]PokeTransport{PokeLocal, PokePostgres, PokeCluster, PokeNone}, c.Pokes) {
		p.addf("Pokes %q: must be %q, %q, %q or %q", c.Pokes, PokeLocal, PokePostgres, PokeCluster, PokeNone)
	}
	p.channel(c.Pokes, c.Name)
	p.listenURL(c.Pokes, c.ListenURL)
	if need := c.connections(); c.Connections != 0 && c.Connections < need {
		p.addf("Connections %d: this configuration needs at least %d (queues, flushers and sweeps each hold one at a time)",
			c.Connections, need)
	}
	if c.Connections > maxConnections {
		p.addf("Connections %d: Postgres takes no more than %d", c.Connections, maxConnections)
	}
	if c.Cluster != nil {
		if err := c.Cluster.Validate(); err != nil {
			p.errs = append(p.errs, err)
		}
	}
	return p.err()
}

const (
	// maxConnections is the most that Postgres's max_connections can be.
	maxConnections = 262_143
	// maxDuration leaves room for sums and small multiples, here and in Postgres.
	maxDuration = 50 * 365 * 24 * time.Hour
)

func (c Config) validateTimes(p *problems) {
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"Lease", c.Lease}, {"Heartbeat", c.Heartbeat}, {"DrainTimeout", c.DrainTimeout}, {"StepGrace", c.StepGrace},
		{"LeaseSweep", c.LeaseSweep}, {"DeadlineSweep", c.DeadlineSweep}, {"GCInterval", c.GCInterval},
		{"RetainDone", c.RetainDone}, {"RetainFailed", c.RetainFailed}, {"PollBusy", c.PollBusy},
		{"PollIdle", c.PollIdle}, {"AwaitProbe", c.AwaitProbe},
	} {
		p.duration(f.name, f.d)
	}
	if c.Heartbeat > c.Lease/3 {
		p.addf("Heartbeat %v does not fit Lease %v: a lease must outlast two missed beats, so it is at least three heartbeats",
			c.Heartbeat, c.Lease)
	}
	if c.PollBusy > c.PollIdle {
		p.addf("PollBusy %v is longer than PollIdle %v", c.PollBusy, c.PollIdle)
	}
}

func (c Config) validateQueues(p *problems) {
	for name, q := range c.Queues {
		p.name("Queues", name, "@")
		if q.Concurrency < 0 || q.Concurrency > 100_000 {
			p.addf("Queues[%q].Concurrency %d: must be between 1 and 100,000", name, q.Concurrency)
		}
	}
	for _, name := range c.InsertQueues {
		p.name("InsertQueues", name, "@")
	}
}

func (c Config) validateFlushers(p *problems) {
	for i, f := range c.Flushers {
		if f.MaxBatch < 0 || f.MaxBatch > 100_000 {
			p.addf("Flushers[%d].MaxBatch %d: must be between 1 and 100,000", i, f.MaxBatch)
		}
		if f.MaxBytes < 0 {
			p.addf("Flushers[%d].MaxBytes %d: must be positive", i, f.MaxBytes)
		}
		if f.Linger < 0 || f.Linger > time.Minute {
			p.addf("Flushers[%d].Linger %v: must be between 0 and 1m", i, f.Linger)
		}
	}
	for name := range c.Queues {
		if c.flusherOf(name) < 0 {
			p.addf("Flushers: none serves the queue %q; add one without Queues, which serves all", name)
		}
	}
}

// duration checks a time that a configuration names.
func (p *problems) duration(field string, d time.Duration) {
	switch {
	case d < time.Millisecond:
		p.addf("%s %v: must be at least 1ms", field, d)
	case d > maxDuration:
		p.addf("%s %v: must be at most 50 years", field, d)
	}
}

// maxPayload checks the largest payload; 0 = the default. More than this no instance may have, see fsm.Limits.
func (p *problems) maxPayload(n int) {
	if n < 0 || n > 16<<20 {
		p.addf("MaxPayload %d: must be between 1 byte and 16 MiB", n)
	}
}

// flusherOf returns the index of the flusher that serves the queue, -1 when none does.
func (c Config) flusherOf(queue string) int {
	return slices.IndexFunc(c.Flushers, func(f Flusher) bool {
		return len(f.Queues) == 0 || slices.Contains(f.Queues, queue)
	})
}

// connections is how many connections the engine can use at once: one a scheduler for claims and beats, three a
// flusher (its batch, its slow lane, and what the next steps of inline chains see), two each for reaper and gc (their two
// sweeps), one each for await and node, three for limits (credits, reconciles, and what inline chains ask), one to
// announce, and one for periodic insertions.
func (c Config) connections() int {
	n := c.schedulers() + 3*len(c.Flushers) + 9
	if c.Pokes == PokePostgres {
		n++
	}
	if len(c.Crons) > 0 {
		n++
	}
	return n
}

// name checks a name that becomes part of a claim's identity.
func (p *problems) name(field, s, forbidden string) {
	if err := fsm.CheckName(field, s); err != nil {
		p.errs = append(p.errs, err)
		return
	}
	if i := strings.IndexAny(s, forbidden); i >= 0 {
		p.addf("%s %q: must not contain %q", field, s, s[i])
	}
}

// machines collects the definitions' own problems, duplicates, and limits that nobody declared.
func (p *problems) machines(defs []fsm.Definition) {
	seen := make(map[machineRef]bool)
	for i, def := range defs {
		if def == nil {
			p.addf("Machines[%d] is nil", i)
			continue
		}
		spec := def.Spec()
		for _, err := range spec.Problems {
			p.errs = append(p.errs, fmt.Errorf("machine %q: %w", spec.Name, err))
		}
		ref := machineRef{spec.Name, spec.Version}
		if seen[ref] {
			p.addf("machine %q version %d is declared twice", spec.Name, spec.Version)
		}
		seen[ref] = true
	}
}

// warnings are what Start logs: allowed, but perhaps not meant.
func (c Config) warnings() []string {
	var out []string
	for _, def := range c.Machines {
		spec := def.Spec()
		if _, runs := c.Queues[spec.Queue]; !runs && !slices.Contains(c.InsertQueues, spec.Queue) {
			out = append(out, fmt.Sprintf("this process does not run queue %q of machine %q; its instances wait for another process",
				spec.Queue, spec.Name))
		}
	}
	used := make(map[int]bool)
	for name := range c.Queues {
		used[c.flusherOf(name)] = true
	}
	for i, f := range c.Flushers {
		if !used[i] && len(c.Queues) > 0 {
			out = append(out, fmt.Sprintf("Flushers[%d] has nothing to do: those before it serve all of this process's queues that it names", i))
			continue
		}
		for _, name := range f.Queues {
			if _, runs := c.Queues[name]; !runs {
				out = append(out, fmt.Sprintf("Flushers[%d] names the queue %q, which this process does not run", i, name))
			}
		}
	}
	return out
}
