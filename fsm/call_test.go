package fsm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// pages serves an inbox and children in pages of two, as an engine does.
type pages struct {
	inbox    []Signal
	children []Child
	err      error
}

func (p *pages) Signals(_ context.Context, _ int64, handed []int64) ([]Signal, error) {
	rest := slices.DeleteFunc(slices.Clone(p.inbox), func(s Signal) bool { return slices.Contains(handed, s.ID) })
	return rest[:min(2, len(rest))], p.err
}

func (p *pages) Children(_ context.Context, _, after int64) ([]Child, error) {
	rest := slices.DeleteFunc(slices.Clone(p.children), func(c Child) bool { return c.ID <= after })
	return rest[:min(2, len(rest))], p.err
}

// paged is an input with the first signals and children of p; every second signal is awaited.
func paged(p *pages, n int) *Input {
	for i := range int64(n) {
		p.inbox = append(p.inbox, Signal{ID: 10 + i, Name: []string{"s", "other"}[i%2]})
		p.children = append(p.children, Child{ID: 20 + i})
	}
	in := input()
	in.Attempt, in.Queue, in.CorrelationKey, in.ParentID = 2, "q", "o:1", 3
	in.Awaits, in.Inbox, in.MoreInbox = []string{"s"}, p.inbox[:min(2, n)], n > 2
	in.Children, in.MoreChildren, in.Pages = p.children[:min(2, n)], n > 2, p
	in.ChildCounts = map[Status]int64{StatusDone: int64(n)}
	return in
}

func TestCallShowsTheInstance(t *testing.T) {
	t.Parallel()
	m := machine(func(_ context.Context, c *Call[order]) (Outcome, error) {
		got := fmt.Sprint(c.ID, c.Machine, c.Version, c.Step, c.Attempt, c.Queue, c.CorrelationKey, c.ParentID,
			c.State.ID, len(c.Inbox), len(c.Awaited), c.MoreInbox, len(c.Children), c.MoreChildren, c.ChildCounts)
		return Done(got), nil
	}, Version(4))
	e := ends(t, Run(t.Context(), m.Spec(), paged(&pages{}, 5)), Finished)
	if got, want := string(e.Result), `"7m 4a2qo:13 1 2 1 true 2 true map[done:5]"`; strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 3, 4, 5} {
		var signals, children []int64
		m := machine(func(ctx context.Context, c *Call[order]) (Outcome, error) {
			for page := c.Inbox; ; {
				for _, s := range page {
					signals = append(signals, s.ID)
				}
				next, err := c.NextInbox(ctx)
				if err != nil || len(next) == 0 {
					break
				}
				page = next
			}
			for page := c.Children; ; {
				for _, s := range page {
					children = append(children, s.ID)
				}
				next, err := c.NextChildren(ctx)
				if err != nil || len(next) == 0 {
					break
				}
				page = next
			}
			if c.MoreInbox || c.MoreChildren {
				t.Error("there is still more")
			}
			return Next("a"), nil
		})
		e := ends(t, Run(t.Context(), m.Spec(), paged(&pages{}, n)), Finished)
		var wantSignals, wantChildren, wantHanded []int64
		for i := range int64(n) {
			wantSignals, wantChildren = append(wantSignals, 10+i), append(wantChildren, 20+i)
			if i%2 == 0 {
				wantHanded = append(wantHanded, 10+i)
			}
		}
		if !slices.Equal(signals, wantSignals) || !slices.Equal(children, wantChildren) || !slices.Equal(e.Handed, wantHanded) {
			t.Errorf("%d: read %v, %v, handed %v", n, signals, children, e.Handed)
		}
	}
}

// TestHandedIsWhatWasRead: what stayed unread in later pages survives; what the step read before it failed counts.
func TestHandedIsWhatWasRead(t *testing.T) {
	t.Parallel()
	read := func(times int, fail error) StepFunc[order] {
		return func(ctx context.Context, c *Call[order]) (Outcome, error) {
			for range times {
				if _, err := c.NextInbox(ctx); err != nil {
					return nil, err
				}
			}
			clear(c.Awaited)
			clear(c.Inbox)
			return Await("s").Then("a"), fail
		}
	}
	handler := func(context.Context, *Call[order], error) (Outcome, error) { return Next("a"), nil }
	for _, test := range []struct {
		pages int
		fail  error
		want  []int64
	}{
		{0, nil, []int64{10}},
		{1, nil, []int64{10, 12}},
		{0, errors.New("x"), []int64{10}},
		{1, errors.New("x"), []int64{10, 12}},
	} {
		in := paged(&pages{}, 6)
		in.Inbox = slices.Clone(in.Inbox)
		e := ends(t, Run(t.Context(), machine(read(test.pages, test.fail)).OnError(handler).Spec(), in), Finished)
		if test.fail == nil && !slices.Equal(e.Handed, test.want) {
			t.Errorf("%d pages: handed %v, want %v", test.pages, e.Handed, test.want)
		}
		if test.fail != nil && (e.Kind != KindNext || len(e.Handed) != len(test.want)) {
			t.Errorf("%d pages, then an error: %+v", test.pages, e)
		}
	}
}

func TestPagesFail(t *testing.T) {
	t.Parallel()
	gone := errors.New("connection lost")
	m := machine(func(ctx context.Context, c *Call[order]) (Outcome, error) {
		_, inbox := c.NextInbox(ctx)
		_, children := c.NextChildren(ctx)
		return nil, errors.Join(inbox, children)
	})
	res := Run(t.Context(), m.Spec(), paged(&pages{err: gone}, 3))
	for _, want := range []string{"read more of the inbox of instance 7", "read more children of instance 7"} {
		if !errors.Is(res.Err, gone) || !strings.Contains(res.Err.Error(), want) {
			t.Errorf("got %v", res.Err)
		}
	}
}

func TestDecoders(t *testing.T) {
	t.Parallel()
	var o order
	if err := (&Signal{Payload: json.RawMessage(`{"paid":5}`)}).Decode(&o); err != nil || o.Paid != 5 {
		t.Errorf("got %+v, %v", o, err)
	}
	if err := (&Signal{ID: 3, Name: "s", Payload: json.RawMessage(`3`)}).Decode(&o); err == nil || !strings.Contains(err.Error(), `signal 3, "s"`) {
		t.Errorf("got %v", err)
	}
	child := Child{ID: 4, Status: StatusDone, State: json.RawMessage(`"{\"id\":6}"`), Result: json.RawMessage(`[1]`)}
	if err := child.DecodeState(&o); err != nil || o.ID != 6 {
		t.Errorf("got %+v, %v", o, err)
	}
	var list []int
	if err := child.DecodeResult(&list); err != nil || len(list) != 1 {
		t.Errorf("got %v, %v", list, err)
	}
	if err := child.DecodeResult(&o); err == nil || !strings.Contains(err.Error(), "result of child 4") {
		t.Errorf("got %v", err)
	}
	if err := (&Child{ID: 4, State: json.RawMessage(`[]`)}).DecodeState(&o); err == nil || !strings.Contains(err.Error(), "state of child 4") {
		t.Errorf("got %v", err)
	}
	if err := (&Child{ID: 4, Status: StatusFailed}).DecodeResult(&o); !errors.Is(err, ErrNoResult) {
		t.Errorf("got %v", err)
	}
}

func TestCallMakesSiblings(t *testing.T) {
	t.Parallel()
	m := machine(func(_ context.Context, c *Call[order]) (Outcome, error) {
		return ScheduleChildren(c.New(order{ID: c.State.ID + 1}, Queue("q"))).Then("a"), nil
	}, Version(2))
	e := ends(t, Run(t.Context(), m.Spec(), input()), Finished)
	if c := e.Children[0]; c.Machine != "m" || c.Version != 2 || c.Step != "a" || c.Queue != "q" || string(c.State) != `{"id":2,"paid":0}` {
		t.Errorf("got %+v", c)
	}
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	for s, want := range map[Status]bool{
		Runnable: false, Executing: false, AwaitingSignal: false, AwaitingChildren: false, StatusDone: true, StatusFailed: true,
	} {
		if s.Terminal() != want {
			t.Errorf("%s: terminal is %v", s, s.Terminal())
		}
	}
}
