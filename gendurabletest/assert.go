package gendurabletest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// MustInsert is Insert that fails the test instead of returning an error.
func (r *Runner) MustInsert(inst fsm.Instance, opts ...fsm.InsertOption) gendurable.ID {
	r.t.Helper()
	id, err := r.Insert(r.t.Context(), inst, opts...)
	if err != nil {
		r.t.Fatalf("gendurabletest: insert: %v", err)
	}
	return id
}

// MustSignal is Signal that fails the test instead of returning an error.
func (r *Runner) MustSignal(to gendurable.Ref, name string, payload any, opts ...gendurable.SignalOption) {
	r.t.Helper()
	if err := r.Signal(r.t.Context(), to, name, payload, opts...); err != nil {
		r.t.Fatalf("gendurabletest: signal %q: %v", name, err)
	}
}

// Steps lists what ran, in order: of the instances given, or of all with none given.
func (r *Runner) Steps(ids ...gendurable.ID) []Step {
	var steps []Step
	for _, s := range r.history {
		if len(ids) == 0 || slices.Contains(ids, s.ID) {
			steps = append(steps, s)
		}
	}
	return steps
}

// Instance returns what the database says of an instance. It fails the test when there is none.
func (r *Runner) Instance(ref gendurable.Ref) *gendurable.Instance {
	r.t.Helper()
	in, err := r.Get(r.t.Context(), ref)
	if err != nil {
		r.t.Fatalf("gendurabletest: %v", err)
	}
	return in
}

// Children returns the children of an instance that are in the database, in the order of their ids.
func (r *Runner) Children(ref gendurable.Ref) []*gendurable.Instance {
	r.t.Helper()
	parent := r.Instance(ref).ID
	var children []*gendurable.Instance
	for after := int64(0); ; {
		page, err := r.store.ChildrenPage(r.t.Context(), int64(parent), after, 1000)
		r.must(err)
		if len(page) == 0 {
			return children
		}
		for _, child := range page {
			children = append(children, r.Instance(gendurable.ID(child.ID)))
		}
		after = page[len(page)-1].ID
	}
}

// AssertStatus fails the test unless the instance has the status.
func (r *Runner) AssertStatus(ref gendurable.Ref, want fsm.Status) {
	r.t.Helper()
	if in := r.Instance(ref); in.Status != want {
		r.t.Errorf("want instance %d %s: %s", in.ID, want, r.about(in.ID))
	}
}

// AssertStep fails the test unless the instance is at the step: the one that it will run, runs, or ran last.
func (r *Runner) AssertStep(ref gendurable.Ref, want string) {
	r.t.Helper()
	if in := r.Instance(ref); in.Step != want {
		r.t.Errorf("want instance %d at step %q: %s", in.ID, want, r.about(in.ID))
	}
}

// AssertAwaiting fails the test unless the instance is parked for exactly these signals, in any order.
func (r *Runner) AssertAwaiting(ref gendurable.Ref, names ...string) {
	r.t.Helper()
	in := r.Instance(ref)
	got, want := slices.Sorted(slices.Values(in.Awaits)), slices.Sorted(slices.Values(names))
	if in.Status != fsm.AwaitingSignal || !slices.Equal(got, want) {
		r.t.Errorf("want instance %d awaiting %q: %s", in.ID, want, r.about(in.ID))
	}
}

// AssertDone fails the test unless the instance is done. See Result for what it returned.
func (r *Runner) AssertDone(ref gendurable.Ref) {
	r.t.Helper()
	r.AssertStatus(ref, fsm.StatusDone)
}

// AssertFailed fails the test unless the instance has failed with an error that contains the text.
func (r *Runner) AssertFailed(ref gendurable.Ref, text string) {
	r.t.Helper()
	if in := r.Instance(ref); in.Status != fsm.StatusFailed || !strings.Contains(in.LastError, text) {
		r.t.Errorf("want instance %d failed with an error that contains %q: %s", in.ID, text, r.about(in.ID))
	}
}

// Result returns the result of a done instance. It fails the test when the instance is not done, or its result is no T.
func Result[T any](r *Runner, ref gendurable.Ref) (result T) {
	r.t.Helper()
	in := r.Instance(ref)
	if in.Status != fsm.StatusDone {
		r.t.Fatalf("want instance %d done: %s", in.ID, r.about(in.ID))
	}
	if err := json.Unmarshal(in.Result, &result); err != nil {
		r.t.Fatalf("gendurabletest: decode the result of instance %d, which is %s: %v", in.ID, in.Result, err)
	}
	return result
}

// State returns the state of an instance, of a job its arguments. It fails the test when it is no T.
func State[T any](r *Runner, ref gendurable.Ref) (state T) {
	r.t.Helper()
	in := r.Instance(ref)
	if err := json.Unmarshal(in.State, &state); err != nil {
		r.t.Fatalf("gendurabletest: decode the state of instance %d, which is %s: %v", in.ID, in.State, err)
	}
	return state
}

// about describes where an instance stands, and how it got there.
func (r *Runner) about(id gendurable.ID) string {
	r.t.Helper()
	in := r.Instance(id)
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%d is %s at step %q", in.Machine, in.Version, in.Status, in.Step)
	if len(in.Awaits) > 0 && in.Status == fsm.AwaitingSignal {
		fmt.Fprintf(&b, ", awaiting %q", in.Awaits)
	}
	if in.LastError != "" {
		fmt.Fprintf(&b, ", last error: %s", in.LastError)
	}
	if steps := r.Steps(id); len(steps) > 0 {
		fmt.Fprintf(&b, "; its last steps:\n%s", lines(last(steps, 10)))
	} else {
		b.WriteString("; no step of it has run")
	}
	return b.String()
}

func last(steps []Step, n int) []Step { return steps[max(len(steps)-n, 0):] }

func lines(steps []Step) string {
	out := make([]string, len(steps))
	for i, s := range steps {
		out[i] = "\t" + s.String()
	}
	return strings.Join(out, "\n")
}
