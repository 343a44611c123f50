// Package system holds the contenders: the floor, gendurable, and the peers, each in its configurations. A workload
// drives them through the small interfaces below; a system has the methods for what it can do, and is left out of the
// workloads that it lacks.
//
// All of them do the same: the payload is {"n": 42}, the user code returns it, and what counts is what their tables say
// afterwards.
package system

import (
	"context"
	"log/slog"
	"time"

	"github.com/gendurable/gendurable/bench/lab"
)

// System is a contender on one fresh database. Methods are called in the order Setup, loads, Start, more, Stop; those
// of one trial only.
type System interface {
	// Setup makes the tables.
	Setup(ctx context.Context) error
	// Start starts the workers.
	Start(ctx context.Context) error
	// Stop stops them, if they run, and closes every connection.
	Stop(ctx context.Context) error
	// Ended is a query of one column, a timestamptz for each unit (job, chain, woken instance, child, parent) that
	// ended well: when it did.
	Ended() string
	// Progress is how many units the system believes to have ended. A hint when to look; nothing is concluded from it.
	Progress() int64
}

// Jobs runs jobs of one step.
type Jobs interface {
	System
	LoadJobs(ctx context.Context, n int) error
}

// Steps runs chains of steps, each of which is committed.
type Steps interface {
	System
	LoadChains(ctx context.Context, n int) error
}

// Inline runs chains whose row stays with its worker between the steps, each of which is committed all the same.
type Inline interface {
	System
	LoadInline(ctx context.Context, n int) error
}

// ChainLength is the number of steps of a chain.
const ChainLength = 10

// Latency runs one job for a caller who waits for its result.
type Latency interface {
	System
	// Once inserts a job and returns when its result is known to the caller.
	Once(ctx context.Context) error
}

// Occupier can keep slots busy.
type Occupier interface {
	System
	// Occupy inserts n steps that run until the release, and returns when all of them run.
	Occupy(ctx context.Context, n int) (release func(), err error)
}

// Signals wakes instances that wait.
type Signals interface {
	System
	// LoadWaiting makes n instances that park for a signal. The workers run already.
	LoadWaiting(ctx context.Context, n int) error
	// Parked is a query of one number: the instances that are parked.
	Parked() string
	// Signal sends the signal to the i-th of them.
	Signal(ctx context.Context, i int) error
}

// BulkSignals sends many in one call.
type BulkSignals interface {
	Signals
	// SignalMany signals the instances from, from+1, ..., to-1.
	SignalMany(ctx context.Context, from, to int) error
}

// FanOut runs a parent that makes children and waits for all of them.
type FanOut interface {
	System
	// Parent inserts a parent of n children. The workers run already.
	Parent(ctx context.Context, n int) error
}

// Inserts puts jobs into the database that nobody runs.
type Inserts interface {
	System
	// InsertOne commits one job.
	InsertOne(ctx context.Context) error
	// Rows is a query of one number: the jobs that are there.
	Rows() string
}

// ManyInserts commits n jobs in one call and learns their ids.
type ManyInserts interface {
	Inserts
	InsertMany(ctx context.Context, n int) error
}

// BulkInserts commits n jobs in one call, by the fastest way there is, ids or not.
type BulkInserts interface {
	Inserts
	InsertBulk(ctx context.Context, n int) error
}

// Role tells what a contender is for.
type Role string

// The roles.
const (
	Floor Role = "floor"
	Ours  Role = "gendurable"
	Peer  Role = "peer"
)

// Conf is what a trial gives a system.
type Conf struct {
	DB *lab.Database
	// Slots, if not 0, is how many steps must be able to run at once, whatever the configuration says.
	Slots int
	// Retain, if not 0, is how long ended units stay.
	Retain time.Duration
	// Node, if not empty, is the name of this process among several on one database.
	Node string
	Log  *slog.Logger
}

// slots is what the trial asks for, or else the configuration's own.
func (c Conf) slots(own int) int {
	if c.Slots > 0 {
		return c.Slots
	}
	return own
}

// Contender is a system in one configuration.
type Contender struct {
	System string // as PEERS names it
	Config string
	Role   Role
	// Note says in a line what the configuration is.
	Note string
	// Rates are rough speeds in units a second, by which workloads choose how much to load. Too high a number costs
	// time to load, too low a one a shorter run.
	Rates Rates
	// Drain says that jobs advance side by side and end at about the same time, because they take several turns: their
	// rate then shows only when the backlog is drained.
	Drain bool
	// Leave are workloads that this configuration is left out of although it could, because another one of the system
	// is the same there.
	Leave map[string]bool
	New   func(Conf) System
}

// Rates are units a second.
type Rates struct{ Jobs, Steps, Signals, Children float64 }

// Name is "system config".
func (c Contender) Name() string {
	if c.Config == "" {
		return c.System
	}
	return c.System + " " + c.Config
}

// Does says whether a configuration takes part in a workload: DBOS has one of its own for some.
func (c Contender) Does(workload string) bool { return c.Leave == nil || !c.Leave[workload] }

// All are the contenders, the floor first.
func All() []Contender {
	var all []Contender
	for _, s := range [][]Contender{floorContenders, gendurableContenders, riverContenders, dbosContenders, goWorkflowsContenders} {
		all = append(all, s...)
	}
	return all
}

// payload is the state, argument, input of everything.
type payload struct {
	N int `json:"n"`
}

var thePayload = payload{N: 42}
