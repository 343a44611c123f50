// Package fsm is what authors of durable machines and jobs write with: typed state machines, jobs, their
// outcomes, and what a step sees of its instance. It knows nothing of databases and actors; an engine runs what is
// defined here.
package fsm
