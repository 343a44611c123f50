package gendurable

import (
	"fmt"
	"slices"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

type machineRef struct {
	name    string
	version int
}

// registry is what an engine or client knows: its machines, and the queues it may insert into.
// It is read-only after newRegistry.
type registry struct {
	specs  map[machineRef]*fsm.Spec
	queues map[string]bool
	// anyMachine and anyQueue accept all: a client that was given none.
	anyMachine, anyQueue bool
}

func newRegistry(defs []fsm.Definition, queues ...string) *registry {
	r := &registry{specs: make(map[machineRef]*fsm.Spec), queues: make(map[string]bool)}
	for _, def := range defs {
		spec := def.Spec()
		r.specs[machineRef{spec.Name, spec.Version}] = spec
		r.queues[spec.Queue] = true
	}
	for _, q := range queues {
		r.queues[q] = true
	}
	return r
}

// spec returns the machine's description, nil when it is unknown here.
func (r *registry) spec(name string, version int) *fsm.Spec {
	return r.specs[machineRef{name, version}]
}

// check refuses an insertion of a machine, step or queue that is unknown here.
func (r *registry) check(in fsm.Insertion) error {
	if !r.anyMachine {
		spec := r.spec(in.Machine, in.Version)
		if spec == nil {
			return fmt.Errorf("%w: %q version %d; list it in Config.Machines", ErrUnknownMachine, in.Machine, in.Version)
		}
		if !spec.HasStep(in.Step) {
			return fmt.Errorf("%w: machine %q has no step %q", ErrInvalid, in.Machine, in.Step)
		}
	}
	if !r.anyQueue && !r.queues[in.Queue] {
		return fmt.Errorf("%w: %q; run it, or list it in InsertQueues", ErrUnknownQueue, in.Queue)
	}
	return nil
}

// steps lists the steps of the machines for the node row.
func (r *registry) steps() []string {
	var out []string
	for ref, spec := range r.specs {
		for _, step := range spec.StepNames() {
			out = append(out, stepText(pg.StepRef{Machine: ref.name, Version: ref.version, Step: step}))
		}
	}
	slices.Sort(out)
	return out
}

// stepText is a step as node rows have it.
func stepText(s pg.StepRef) string { return fmt.Sprintf("%s/%d/%s", s.Machine, s.Version, s.Step) }

// machines lists what the node row says of this process.
func (r *registry) machines() []string {
	var out []string
	for ref := range r.specs {
		out = append(out, fmt.Sprintf("%s/%d", ref.name, ref.version))
	}
	slices.Sort(out)
	return out
}
