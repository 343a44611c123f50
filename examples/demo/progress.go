package main

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows how far the demo is: a bar on a terminal, a line for every tenth elsewhere.
type progress struct {
	out   io.Writer
	total int
	bar   *progressbar.ProgressBar // nil when out is no terminal
	tenth int
}

func newProgress(out io.Writer, total int) *progress {
	p := &progress{out: out, total: total}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(f),
			progressbar.OptionSetDescription("instances"), progressbar.OptionShowCount(), progressbar.OptionFullWidth())
	}
	return p
}

func (p *progress) set(done int) {
	if p.bar != nil {
		_ = p.bar.Set(done)
		return
	}
	if tenth := done * 10 / p.total; tenth > p.tenth {
		p.tenth = tenth
		fmt.Fprintf(p.out, "%3d %%  %d of %d instances have ended\n", tenth*10, done, p.total)
	}
}

// say prints a line without disturbing the bar.
func (p *progress) say(format string, args ...any) {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintf(p.out, format+"\n", args...)
	if p.bar != nil {
		_ = p.bar.RenderBlank()
	}
}

func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Exit()
		fmt.Fprintln(p.out)
	}
}
