// Package cron inserts instances periodically. Every node that knows an insertion tries each occurrence, and the database
// lets one of them have it: there is no leader. The database's clock alone says what is due.
package cron

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Store is what the cron actor needs of the database. *pg.Store satisfies it.
type Store interface {
	EnterCron(ctx context.Context, names []string) (pg.CronStanding, error)
	FireCron(ctx context.Context, name string, at time.Time, in pg.Insertion) (pg.CronFired, error)
	PassCron(ctx context.Context, name string, at time.Time) error
}

// Missed says what becomes of occurrences at whose time no node was there to insert them.
type Missed int

// The policies for missed occurrences.
const (
	// Latest inserts the last one and passes over the others.
	Latest Missed = iota
	// All inserts all of them, the oldest first.
	All
	// None passes over all that are older than a minute.
	None
)

const (
	// late is how old an occurrence may be that counts as not missed.
	late = time.Minute
	// maxCatchUp is how many occurrences of one insertion are caught up with in one pass.
	maxCatchUp = 100
	// longest is the longest time between two looks at the database's clock, whose pace may differ from ours.
	longest = time.Minute
	// shortest keeps a look that came too early from being repeated in a spin.
	shortest           = 5 * time.Millisecond
	passTimeout        = time.Minute
	retryMin, retryMax = 200 * time.Millisecond, 10 * time.Second
)

// Entry is a periodic insertion. All fields but Missed are required.
type Entry struct {
	Name     string
	Schedule Schedule
	Missed   Missed
	// Make makes the instance of an occurrence. Called from one goroutine at a time; a panic is an error.
	Make func(at time.Time) (pg.Insertion, error)
}

// Config describes the cron actor. Logger, Store and Entries are required.
type Config struct {
	Logger   *slog.Logger
	Counters *actors.Counters
	Store    Store
	Entries  []Entry
	// Poke learns of the queues that got an instance. May be nil.
	Poke *actor.PID
}

// Props makes the Props of the cron actor. It takes no messages.
func Props(c Config) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	outages := make([]actors.Outage, len(c.Entries)+1)
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor {
		return &cronActor{Config: c, outages: outages, retry: actors.Backoff{First: retryMin, Max: retryMax}}
	})
}

type cronActor struct {
	Config
	life  actors.Life
	retry actors.Backoff
	// outages are one an entry, whose instance cannot be made, and one for the database. They outlive restarts.
	outages []actors.Outage
}

type (
	due    struct{}
	passed struct {
		inserted int64
		queues   []string
		wait     time.Duration // until the next look; zero = nobody knows
		err      error
	}
)

func (c *cronActor) Receive(ctx actor.Context) {
	switch m := c.life.Open(ctx).(type) {
	case *actor.Started, due:
		c.life.GoFor(passTimeout, func(ctx context.Context) any { return c.pass(ctx) })
	case passed:
		c.passed(m)
	}
}

func (c *cronActor) passed(p passed) {
	c.Counters.CronInserted.Add(p.inserted)
	if len(p.queues) > 0 {
		c.life.Send(c.Poke, actors.Announce{Queues: p.queues})
	}
	database := &c.outages[len(c.Entries)]
	if p.err != nil {
		c.Counters.SweepErrors.Add(1)
		database.Begin(c.Logger, "periodic insertions fail just now; they are made up for as their policies say", p.err)
		wait := c.retry.Next()
		if p.wait > 0 { // of the others
			wait = min(wait, max(p.wait, shortest))
		}
		c.life.After(wait, due{})
		return
	}
	database.Over(c.Logger, "periodic insertions succeed again")
	c.retry.Reset()
	c.life.After(p.wait, due{})
}

// pass inserts what is due, and finds out when to look again.
func (c *cronActor) pass(ctx context.Context) (p passed) {
	begun := time.Now()
	names := make([]string, len(c.Entries))
	for i := range c.Entries {
		names[i] = c.Entries[i].Name
	}
	standing, err := c.Store.EnterCron(ctx, names)
	if err != nil {
		return passed{err: err}
	}
	p.wait = longest
	for i := range c.Entries {
		e := &c.Entries[i]
		last, known := standing.Last[e.Name]
		if !known { // somebody enters it just now
			p.wait = shortest
			continue
		}
		last, err := c.catchUp(ctx, i, last, standing.Now, &p)
		if err != nil { // one that cannot be inserted does not keep those behind it waiting
			p.err = errors.Join(p.err, err)
			if ctx.Err() != nil {
				return p
			}
			continue
		}
		if next := e.Schedule.Next(last); !next.IsZero() {
			p.wait = min(p.wait, next.Sub(standing.Now)-time.Since(begun))
		}
	}
	p.wait = max(p.wait, shortest)
	return p
}

// catchUp inserts the occurrences of an entry that are due, and returns the last that is done with.
func (c *cronActor) catchUp(ctx context.Context, i int, last, now time.Time, p *passed) (time.Time, error) {
	e := &c.Entries[i]
	var due []time.Time
	if e.Missed == All {
		due = e.Schedule.Due(last, now, maxCatchUp)
	} else if t, ok := e.Schedule.Latest(last, now); ok {
		due = []time.Time{t}
	}
	for _, at := range due {
		if e.Missed == None && now.Sub(at) > late {
			if err := c.Store.PassCron(ctx, e.Name, at); err != nil {
				return last, err
			}
			last = at
			continue
		}
		in, err := e.make(at)
		if err != nil { // nothing is lost: the next pass tries again
			c.outages[i].Begin(c.Logger, fmt.Sprintf("the instance of the periodic insertion %q cannot be made, it is tried again each minute", e.Name), err)
			return now, nil
		}
		c.outages[i].Over(c.Logger, fmt.Sprintf("the instance of the periodic insertion %q can be made again", e.Name))
		fired, err := c.Store.FireCron(ctx, e.Name, at, in)
		if err != nil {
			return last, err
		}
		if fired.ID != 0 {
			p.inserted++
			if !slices.Contains(p.queues, in.Queue) {
				p.queues = append(p.queues, in.Queue)
			}
		} else if fired.Claimed {
			c.Logger.Info("gendurable: an occurrence of a periodic insertion was passed over, its correlation key is occupied",
				"name", e.Name, "at", at, "key", in.CorrelationKey)
		}
		last = at
	}
	return last, nil
}

func (e *Entry) make(at time.Time) (in pg.Insertion, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return e.Make(at)
}
