package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gendurable/gendurable/bench/system"
)

// Mean names the mean throughput among the further figures of the workloads sustained.
const Mean = "mean jobs/s"

const (
	// sustainedShare is the load, of the floor's own peak with inserts and deletes included.
	sustainedShare  = 0.7
	sustainedRetain = 5 * time.Second
	// sustainedBacklog bounds what producers run ahead: a system that cannot keep up then shows its throughput instead
	// of an ever longer queue.
	sustainedBacklog = 100_000
	producers        = 2
	producerBatch    = 200
)

var sustained = []Workload{
	{
		Name: "sustained", Group: "sustained", OnlyByName: true, Ratio: true, Unit: "last ÷ second tenth", Per: "job",
		Title: "Insert, run and delete at 70 % of the floor's peak: throughput of the last tenth of the time by that of the second",
		Fits:  fitsSustained,
		Run:   func(ctx context.Context, t *Trial) (Measure, error) { return runSustained(ctx, t, false) },
	},
	{
		Name: "sustained-open", Group: "sustained", OnlyByName: true, Ratio: true, Unit: "last ÷ second tenth", Per: "job",
		Title: "The same with a transaction left open throughout",
		Fits:  fitsSustained,
		Run:   func(ctx context.Context, t *Trial) (Measure, error) { return runSustained(ctx, t, true) },
	},
}

func fitsSustained(c system.Contender, _ system.System) bool { return c.Role != system.Peer }

// runSustained runs producers and workers together. The floor runs first, as fast as it can and for a shorter time: its
// throughput is the peak that the others' load is a share of.
func runSustained(ctx context.Context, t *Trial, open bool) (Measure, error) {
	return on(ctx, t, system.Conf{Retain: sustainedRetain}, func(p *prepared) (m Measure, err error) {
		duration, rate := t.Window, sustainedShare*t.Recall["peak"]
		if t.Contender.Role == system.Floor {
			duration, rate = max(t.Window/10, min(t.Window, 20*time.Second)), 0
		} else if rate == 0 {
			return m, errors.New("the floor's peak is not known: let the floor run first")
		}
		if err := p.system.Start(ctx); err != nil {
			return m, err
		}
		var samples []sample
		m.Cost, err = p.metered(ctx, func() error {
			if open {
				release, err := p.holdSnapshot(ctx)
				if err != nil {
					return err
				}
				defer release()
			}
			if samples, err = p.sustain(ctx, duration, rate); err != nil {
				return err
			}
			m.Units, err = p.count(ctx, "SELECT coalesce(max(id), 0) FROM gen_durable")
			return err
		})
		if err != nil {
			return m, err
		}
		m.judge(samples)
		if t.Contender.Role == system.Floor {
			t.Recall["peak"] = m.More[Mean]
		}
		return m, nil
	})
}

// holdSnapshot leaves a transaction open that could still read everything from now on.
func (p *prepared) holdSnapshot(ctx context.Context) (release func(), err error) {
	conn, err := p.db.Pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class"); err != nil {
		conn.Release()
		return nil, err
	}
	return func() {
		_, _ = conn.Exec(context.WithoutCancel(ctx), "ROLLBACK")
		conn.Release()
	}, nil
}

// sustain produces at a rate (0 = as fast as possible) and samples once a second.
func (p *prepared) sustain(ctx context.Context, duration time.Duration, rate float64) ([]sample, error) {
	run, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	var group sync.WaitGroup
	failed := make(chan error, producers)
	for range producers {
		group.Go(func() {
			if err := p.produce(run, rate/producers); err != nil && run.Err() == nil {
				failed <- fmt.Errorf("produce: %w", err)
				cancel()
			}
		})
	}
	var samples []sample
	var err error
	every := min(time.Second, duration/10)
	for start := time.Now(); err == nil && pause(run, every) == nil; {
		var s sample
		if s, err = p.sample(ctx, every/2); err == nil {
			s.at = time.Since(start).Seconds()
			samples = append(samples, s)
		}
	}
	cancel()
	group.Wait()
	select {
	case e := <-failed:
		err = errors.Join(err, e)
	default:
	}
	return samples, err
}

// produce inserts batches at a rate, and waits while too much is queued.
func (p *prepared) produce(ctx context.Context, rate float64) error {
	s := p.system.(system.ManyInserts)
	inserted := int64(0)
	for start := time.Now(); ctx.Err() == nil; {
		if inserted-p.system.Progress()/producers > sustainedBacklog/producers {
			if err := pause(ctx, 5*time.Millisecond); err != nil {
				return err
			}
			continue
		}
		if rate > 0 {
			due := start.Add(time.Duration(float64(inserted) / rate * float64(time.Second)))
			if wait := time.Until(due); wait > 0 {
				if err := pause(ctx, wait); err != nil {
					return err
				}
			}
		}
		if err := s.InsertMany(ctx, producerBatch); err != nil {
			return err
		}
		inserted += producerBatch
	}
	return nil
}

// sample is a look at a running system.
type sample struct {
	at             float64
	rate, p99      float64 // jobs a second, and milliseconds from insert to commit, of a stretch that has just ended
	table, indexes float64 // MB
}

// sample looks at the rows that ended in a stretch that is over, by the index over the time of ending. That needs a time that stays the
// same: with clock_timestamp the whole table is read, and judged by an ever later time.
func (p *prepared) sample(ctx context.Context, stretch time.Duration) (s sample, err error) {
	var n int
	var p99 *float64
	err = p.db.Pool.QueryRow(ctx, `
		SELECT count(*), percentile_disc(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM updated_at - inserted_at) * 1000)::float8,
		       pg_table_size('gen_durable') / 1048576.0, pg_indexes_size('gen_durable') / 1048576.0
		  FROM gen_durable
		 WHERE status IN ('done', 'failed') AND updated_at >= now() - $1 * interval '1 s' - interval '50 ms'
		   AND updated_at < now() - interval '50 ms'`, stretch.Seconds()).Scan(&n, &p99, &s.table, &s.indexes)
	s.rate = float64(n) / stretch.Seconds()
	if p99 != nil {
		s.p99 = *p99
	}
	return s, err
}

// judge compares the last tenth of the samples with the second.
func (m *Measure) judge(samples []sample) {
	tenth := func(i int) (t sample) {
		part := samples[len(samples)*i/10 : len(samples)*(i+1)/10]
		for _, s := range part {
			t.rate += s.rate / float64(len(part))
			t.p99 += s.p99 / float64(len(part))
			t.table += s.table / float64(len(part))
			t.indexes += s.indexes / float64(len(part))
		}
		return t
	}
	second, last := tenth(1), tenth(9)
	mean := 0.0
	for _, s := range samples {
		m.Throughput = append(m.Throughput, Point{At: s.at, Value: s.rate})
		mean += s.rate / float64(len(samples))
	}
	m.Figure = ratio(last.rate, second.rate)
	m.More = map[string]float64{
		Mean: mean, "p99 ms, second tenth": second.p99, "p99 ms, last tenth": last.p99,
		"table, last ÷ second": ratio(last.table, second.table), "indexes, last ÷ second": ratio(last.indexes, second.indexes),
	}
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
