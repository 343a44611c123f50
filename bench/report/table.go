package report

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// WriteTable prints the whole as one table, a block of rows a workload, and the environment under it.
func (r *Report) WriteTable(w io.Writer, markdown bool) {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"workload", "contender", "unit", "median", "min … max", "÷ floor", "PG µs", "client µs", "WAL B", "commits", "more"})
	right := []string{"median", "min … max", "÷ floor", "PG µs", "client µs", "WAL B", "commits"}
	var columns []table.ColumnConfig
	for _, name := range right {
		columns = append(columns, table.ColumnConfig{Name: name, Align: text.AlignRight})
	}
	if !markdown {
		columns = append(columns, table.ColumnConfig{Name: "more", WidthMax: 48, WidthMaxEnforcer: text.WrapSoft})
	}
	t.SetColumnConfigs(columns)
	for _, b := range r.Blocks {
		for i, row := range b.Rows {
			name := ""
			if i == 0 || markdown {
				name = b.Workload
			}
			t.AppendRow(tableRow(name, b, row))
		}
		t.AppendSeparator()
	}
	if markdown {
		fmt.Fprintln(w, t.RenderMarkdown())
	} else {
		t.SetStyle(table.StyleLight)
		t.Style().Format.Header = text.FormatDefault
		fmt.Fprintln(w, t.Render())
	}
	e := r.Environment
	fmt.Fprintf(w, "\nPG µs, client µs, WAL B and commits are per unit. ÷ floor is how much of the floor's speed is reached.\n")
	fmt.Fprintf(w, "%s, %d cores (%s), %.0f GB, Postgres %s with fsync and synchronous_commit on, %s, load %s, %d rounds of %.1f s\n",
		e.Date.Format("2006-01-02 15:04 MST"), e.Cores, e.CPU, e.MemoryGB, e.Postgres, e.Go, e.Load, r.Rounds, r.WindowS)
}

func tableRow(name string, b *Block, row *Row) table.Row {
	s := row.Summary
	if len(row.Trials) == 0 {
		how := "failed"
		if row.Failed == "" {
			how = "not run"
		}
		return table.Row{name, row.Contender, b.Unit, how, "", "", "", "", "", "", row.Failed}
	}
	var more []string
	for _, k := range slices.Sorted(maps.Keys(s.More)) {
		more = append(more, k+" "+Figure(s.More[k]))
	}
	if row.Failed != "" {
		more = append(more, "a round failed: "+row.Failed)
	}
	toFloor := ""
	if s.ToFloor > 0 {
		toFloor = Figure(s.ToFloor)
	}
	return table.Row{
		name, row.Contender, b.Unit, Figure(s.Median), Figure(s.Min) + " … " + Figure(s.Max), toFloor,
		Figure(s.PostgresMicros), Figure(s.ClientMicros), Figure(s.WALBytes), Figure(s.Commits), strings.Join(more, "; "),
	}
}

// Figure writes a number with three digits that mean something, and thousands apart.
func Figure(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1000:
		digits := math.Pow(10, math.Floor(math.Log10(a))-2)
		return thousands(int64(math.Round(v/digits) * digits))
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
