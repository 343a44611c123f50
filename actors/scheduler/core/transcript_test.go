package core

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

var update = flag.Bool("update", false, "write what the core answers into the transcripts")

// TestTranscripts plays testdata/*.txt: an unindented line is an event, the indented lines below it are the
// effects that it must have. Commands:
//
//	config concurrency=N …        before everything else; "resumed" starts after an earlier life
//	at T EVENT …                  an event at T after the start (the clock never goes back)
//	until T                       ticks whenever a wake is due, up to T; each tick with effects is printed
//
// Run with -update to rewrite the effects, then read the difference.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := (&player{t: t}).play(string(raw))
			if *update {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(raw) {
				t.Errorf("the core answers otherwise than %s says:\n%s", f, firstDifference(string(raw), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range w {
		if i >= len(g) || w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s", i+1, w[i], strings.Join(g[min(i, len(g)):min(i+3, len(g))], "\n     "))
		}
	}
	return "the answer is longer"
}

type player struct {
	t     *testing.T
	core  *Core
	start time.Time
	now   time.Time
	wake  time.Time
	out   strings.Builder
}

func (p *player) play(script string) string {
	p.start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p.now = p.start
	in := bufio.NewScanner(strings.NewReader(script))
	for in.Scan() {
		line := in.Text()
		if strings.HasPrefix(line, "  ") {
			continue // an old answer
		}
		fmt.Fprintln(&p.out, line)
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			p.command(words)
		}
	}
	return p.out.String()
}

func (p *player) command(w []string) {
	switch w[0] {
	case "config":
		p.config(w[1:])
	case "until":
		p.until(p.start.Add(p.dur(w[1])))
	case "at":
		p.moveTo(p.start.Add(p.dur(w[1])))
		p.on(p.event(w[2:]), "  ")
	default:
		p.t.Fatalf("unknown command %q", w)
	}
}

func (p *player) moveTo(t time.Time) {
	if t.Before(p.now) {
		p.t.Fatalf("the clock went back to %v", t.Sub(p.start))
	}
	p.now = t
}

func (p *player) until(end time.Time) {
	for n := 0; !p.wake.IsZero() && !p.wake.After(end); n++ {
		if n > 10000 {
			p.t.Fatal("the core asks to be woken again and again")
		}
		p.now = later(p.now, p.wake)
		p.on(Tick{}, fmt.Sprintf("  %v: ", p.now.Sub(p.start)))
	}
	p.moveTo(end)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (p *player) config(w []string) {
	cfg := Config{Knows: func(s pg.StepRef) bool { return s.Machine != "strange" }}
	resumed := false
	for _, o := range w {
		k, v, _ := strings.Cut(o, "=")
		switch k {
		case "concurrency":
			cfg.Concurrency = p.num(v)
		case "resumed":
			resumed = true
		default:
			p.t.Fatalf("unknown option %q", o)
		}
	}
	p.core = New(cfg, resumed, p.now)
	p.on(Tick{}, "  ")
}

// event reads one event.
func (p *player) event(w []string) Event {
	rest := w[1:]
	p.mustBeExpected(w[0])
	switch w[0] {
	case "claimed":
		return p.claimed(rest)
	case "claim-failed":
		return ClaimResult{Err: errors.New("no"), Unknown: slices.Contains(rest, "lost")}
	case "ended":
		return p.ended(rest)
	case "poke":
		if len(rest) > 0 {
			return Poked{In: p.dur(rest[0])}
		}
		return Poked{}
	case "beats":
		return p.beats(rest)
	case "beat-failed":
		return BeatResult{Err: errors.New("no")}
	case "extended":
		return ExtendResult{Beat: p.beats(rest).Beats[0]}
	case "released":
		return ReleaseResult{}
	case "kept":
		return ReleaseResult{Kept: true}
	case "unheld-kept":
		return UnheldResult{Kept: true}
	case "release-failed":
		return ReleaseResult{Err: errors.New("no")}
	case "unheld":
		return UnheldResult{Released: p.num(rest[0])}
	case "unheld-failed":
		return UnheldResult{Err: errors.New("no")}
	case "running":
		return p.running(rest)
	case "steps-restarted":
		return StepsRestarted{}
	case "cancel":
		return CancelRequested{ID: int64(p.num(rest[0])), Reason: "asked for"}
	case "paused":
		return Paused{}
	case "orphan":
		return Orphaned{}
	case "drain":
		return Drain{Timeout: p.dur(rest[0])}
	}
	p.t.Fatalf("unknown event %q", w)
	return nil
}

// mustBeExpected fails on an answer that nobody asked for: the transcript would show nothing.
func (p *player) mustBeExpected(event string) {
	c := p.core
	ok := true
	switch event {
	case "claimed", "claim-failed":
		ok = c.supply.claim.inFlight
	case "beats", "beat-failed":
		ok = c.beat.inFlight
	case "unheld", "unheld-failed", "unheld-kept":
		ok = c.unheld.inFlight
	case "released", "release-failed", "kept":
		ok = c.releasing > 0
	case "running":
		ok = c.asking
	}
	if !ok {
		p.t.Fatalf("at %v: %q answers nothing", p.now.Sub(p.start), event)
	}
}

// claimed reads "claimed 1-3 7 key=k strange took=2ms".
func (p *player) claimed(w []string) Event {
	r := ClaimResult{Took: time.Millisecond}
	proto := pg.Claimed{Machine: "m", Version: 1, Step: "s"}
	var ids []int64
	for _, o := range w {
		switch k, v, _ := strings.Cut(o, "="); k {
		case "key":
			proto.ConcurrencyKey = v
		case "took":
			r.Took = p.dur(v)
		case "strange":
			proto.Machine = "strange"
		case "cancelled":
			reason := "asked for"
			proto.CancelReason = &reason
		default:
			ids = append(ids, p.ids([]string{o})...)
		}
	}
	for _, id := range ids {
		row := proto
		row.ID = id
		r.Rows = append(r.Rows, row)
	}
	return r
}

// ended reads "ended 1-3 stale|vanished|abandoned|unknown delay=5s"; several ids are several events.
func (p *player) ended(w []string) Event {
	e := actors.StepEnded{Delay: -1}
	for _, o := range w[1:] {
		switch k, v, _ := strings.Cut(o, "="); k {
		case "stale":
			e.End = actors.EndStale
		case "vanished":
			e.End = actors.EndVanished
		case "abandoned":
			e.End = actors.EndAbandoned
		case "unknown":
			e.End, e.Step = actors.EndUnknown, pg.StepRef{Machine: "m", Version: 1, Step: "s"}
		case "delay":
			e.Delay = p.dur(v)
		default:
			p.t.Fatalf("unknown option %q", o)
		}
	}
	ids := p.ids(w[:1])
	for _, id := range ids[:len(ids)-1] {
		e.ID = id
		p.on(Ended{[]actors.StepEnded{e}}, fmt.Sprintf("  %d: ", id))
	}
	e.ID = ids[len(ids)-1]
	return Ended{[]actors.StepEnded{e}}
}

// running reads "running 1-3 committing=2-3".
func (p *player) running(w []string) Running {
	var r Running
	for _, o := range w {
		if list, ok := strings.CutPrefix(o, "committing="); ok {
			r.Committing = append(r.Committing, p.ids([]string{list})...)
		} else {
			r.IDs = append(r.IDs, p.ids([]string{o})...)
		}
	}
	return r
}

func (p *player) beats(w []string) BeatResult {
	r := BeatResult{}
	for _, o := range w {
		id, state, _ := strings.Cut(o, "=")
		for _, n := range p.ids([]string{id}) {
			b := pg.Beat{ID: n}
			switch state {
			case "locked":
				b.State = pg.Locked
			case "lost":
				b.State = pg.Lost
			case "cancel":
				reason := "asked for"
				b.CancelReason = &reason
			}
			r.Beats = append(r.Beats, b)
		}
	}
	return r
}

func (p *player) ids(w []string) []int64 {
	var ids []int64
	for _, o := range w {
		from, to, more := strings.Cut(o, "-")
		a := p.num(from)
		b := a
		if more {
			b = p.num(to)
		}
		for ; a <= b; a++ {
			ids = append(ids, int64(a))
		}
	}
	return ids
}

func (p *player) num(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

func (p *player) dur(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// on feeds one event and prints its effects, each on a line of its own.
func (p *player) on(e Event, prefix string) {
	fx := p.core.On(e, p.now)
	for _, l := range describe(fx) {
		fmt.Fprintln(&p.out, prefix+l)
	}
	if fx.Wake != p.wake {
		p.wake = fx.Wake
	}
}

func describe(fx *Effects) []string {
	var l []string
	say := func(format string, args ...any) { l = append(l, fmt.Sprintf(format, args...)) }
	slices.SortFunc(fx.Cancel, func(a, b Cancel) int { return int(a.ID - b.ID) })
	for _, c := range fx.Cancel {
		say("cancel %d: %v", c.ID, strings.SplitN(c.Cause.Error(), ";", 2)[0])
	}
	if len(fx.Abandon) > 0 {
		say("abandon %s", ranges(fx.Abandon))
	}
	if len(fx.Start) > 0 {
		ids := make([]int64, len(fx.Start))
		for i, r := range fx.Start {
			ids[i] = r.ID
		}
		say("start %s", ranges(ids))
	}
	if fx.AskRunning {
		say("ask what runs")
	}
	if len(fx.Release) > 0 {
		ids := make([]int64, len(fx.Release))
		for i, r := range fx.Release {
			ids[i] = r.ID
		}
		say("release %s", ranges(ids))
	}
	if len(fx.Beat) > 0 {
		say("beat %s", ranges(fx.Beat))
	}
	if len(fx.Extend) > 0 {
		say("extend %s", ranges(fx.Extend))
	}
	if fx.ReleaseUnheld {
		say("release all but [%s]", ranges(fx.Held))
	}
	if fx.Claim > 0 {
		skip := ""
		for _, s := range fx.Skip {
			skip += fmt.Sprintf(" not %s/%d %s", s.Machine, s.Version, s.Step)
		}
		say("claim %d%s", fx.Claim, skip)
	}
	if fx.Lost > 0 {
		say("lost %d", fx.Lost)
	}
	for _, s := range fx.Unknown {
		say("cannot run %s/%d %s", s.Machine, s.Version, s.Step)
	}
	if fx.Forgiven > 0 {
		say("forgiven %d, %d left", fx.Forgiven, len(fx.Misfits))
	}
	if fx.Outage != nil {
		say("outage")
	}
	if fx.Recovered {
		say("recovered")
	}
	if fx.Drained {
		say("drained")
	}
	return l
}

// ranges prints ids in ascending order, runs of them as from-to.
func ranges(ids []int64) string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	var parts []string
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		if j == i {
			parts = append(parts, fmt.Sprint(ids[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", ids[i], ids[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, " ")
}
