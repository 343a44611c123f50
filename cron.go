package gendurable

import (
	"fmt"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/cron"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// Cron is a periodic insertion. Any number of processes may have the same: each occurrence is inserted once, by whichever
// comes first, in the statement that also notes that it was. Only the database's clock counts.
type Cron struct {
	// Name tells periodic insertions of one schema apart, also across deploys: the time of the last occurrence is kept by it.
	// A name that is new begins with the next occurrence. Required.
	Name string
	// Schedule is a cron expression: minute, hour, day of the month, month, day of the week, with seconds in front if there
	// are six fields; or @hourly, @daily, @weekly, @monthly, @yearly, or @every and a duration. Required.
	Schedule string
	// TimeZone is the zone of the schedule's times, as in "Europe/Berlin". Default UTC.
	TimeZone string
	// New makes the instance of the occurrence at a time, which is in TimeZone. The instance has no RequestID and no time
	// at which it becomes eligible; with a correlation key that is occupied, the occurrence is passed over. New must be quick
	// and have no effects: other processes may make the same and come too late with it. Required.
	New func(at time.Time) fsm.Instance
	// Missed is what becomes of occurrences at whose time no process was there. Default MissedLatest.
	Missed MissedPolicy
}

// MissedPolicy says what becomes of missed occurrences of a Cron.
type MissedPolicy string

// The policies for missed occurrences.
const (
	// MissedLatest inserts the last of them, once.
	MissedLatest MissedPolicy = "latest"
	// MissedAll inserts all of them, the oldest first.
	MissedAll MissedPolicy = "all"
	// MissedNone inserts none: those that are more than a minute late are passed over.
	MissedNone MissedPolicy = "none"
)

var missed = map[MissedPolicy]cron.Missed{"": cron.Latest, MissedLatest: cron.Latest, MissedAll: cron.All, MissedNone: cron.None}

// crons checks the periodic insertions.
func (p *problems) crons(list []Cron) {
	seen := make(map[string]bool, len(list))
	for i, c := range list {
		p.name(fmt.Sprintf("Crons[%d].Name", i), c.Name, "")
		if seen[c.Name] {
			p.addf("Crons: the name %q is used twice", c.Name)
		}
		seen[c.Name] = true
		if _, err := cron.Parse(c.Schedule, c.TimeZone); err != nil {
			p.addf("Crons[%q].Schedule: %v", c.Name, err)
		}
		if c.New == nil {
			p.addf("Crons[%q].New is nil", c.Name)
		}
		if _, ok := missed[c.Missed]; !ok {
			p.addf("Crons[%q].Missed %q: must be %q, %q or %q", c.Name, c.Missed, MissedLatest, MissedAll, MissedNone)
		}
	}
}

// cronConfig describes the cron actor.
func (e *Engine) cronConfig(t *tree) cron.Config {
	cfg := cron.Config{Logger: e.log, Counters: t.counters, Store: e.store, Poke: t.pid(actors.NamePoke)}
	for _, c := range e.cfg.Crons {
		schedule, err := cron.Parse(c.Schedule, c.TimeZone)
		if err != nil {
			panic(err) // validate has parsed it
		}
		cfg.Entries = append(cfg.Entries, cron.Entry{
			Name: c.Name, Schedule: schedule, Missed: missed[c.Missed],
			Make: func(at time.Time) (pg.Insertion, error) {
				in, err := e.insertion(c.New(at))
				if err == nil && (in.RequestID != "" || !in.EligibleAt.IsZero()) {
					err = fmt.Errorf("%w: the instance of a periodic insertion has a RequestID or a time of its own", ErrInvalid)
				}
				return in, err
			},
		})
	}
	return cfg
}
