package report

import (
	"fmt"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/gendurable/gendurable/bench/workload"
)

// WriteCharts writes SVG files into a directory: throughput over time and the distribution of latencies, one file a
// workload that has them. Each contender is shown by its median trial.
func (r *Report) WriteCharts(dir string) error {
	for _, b := range r.Blocks {
		if err := b.chart(dir, "throughput", "seconds", b.Unit, throughputLine); err != nil {
			return err
		}
		if err := b.chart(dir, "latency", "share of jobs", "ms", latencyLine); err != nil {
			return err
		}
	}
	return nil
}

// chart draws a line a contender, if any has one.
func (b *Block) chart(dir, kind, x, y string, line func(workload.Measure) plotter.XYs) error {
	p := plot.New()
	p.Title.Text = b.Workload + ": " + b.Title
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.Y.Min = 0
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	drawn := 0
	for i, row := range b.Rows {
		m, ok := row.typical()
		if !ok {
			continue
		}
		points := line(m)
		if len(points) < 2 {
			continue
		}
		l, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("report: chart of %s: %w", b.Workload, err)
		}
		l.Color, l.Dashes, l.Width = plotutil.Color(i), plotutil.Dashes(i/7), vg.Points(1.5)
		p.Add(l)
		p.Legend.Add(row.Contender, l)
		drawn++
	}
	if drawn == 0 {
		return nil
	}
	if kind == "latency" {
		logarithmic(p)
	}
	return p.Save(24*vg.Centimeter, 12*vg.Centimeter, filepath.Join(dir, b.Workload+"-"+kind+".svg"))
}

// logarithmic shows milliseconds and seconds on one scale.
func logarithmic(p *plot.Plot) {
	p.Y.Min = 0.1
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: -1}
}

// typical is the trial whose figure is nearest to the median.
func (r *Row) typical() (best workload.Measure, ok bool) {
	distance := 0.0
	for _, m := range r.Trials {
		d := (m.Figure - r.Summary.Median) * (m.Figure - r.Summary.Median)
		if !ok || d < distance {
			best, distance, ok = m, d, true
		}
	}
	return best, ok
}

func throughputLine(m workload.Measure) plotter.XYs {
	points := make(plotter.XYs, len(m.Throughput))
	for i, t := range m.Throughput {
		points[i] = plotter.XY{X: t.At, Y: t.Value}
	}
	return points
}

// latencyLine is the distribution: how many ms a share of the jobs took at most.
func latencyLine(m workload.Measure) plotter.XYs {
	if len(m.Latencies) == 0 {
		return nil
	}
	const steps = 200
	points := make(plotter.XYs, 0, steps)
	for i := range steps {
		q := float64(i) / steps
		points = append(points, plotter.XY{X: q, Y: max(workload.Quantile(m.Latencies, q), 0.1)})
	}
	return points
}
