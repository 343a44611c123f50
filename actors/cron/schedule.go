package cron

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule says when something is to happen, as a cron expression does. Immutable.
type Schedule struct {
	spec cron.Schedule
	// every is the interval of "@every", which counts from occurrence to occurrence; 0 = spec names the times.
	every time.Duration
}

var parser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Parse reads a cron expression of five fields, or of six with the seconds in front, or a descriptor such as @daily or
// @every 90m, whose times are those of the zone: a name of the time zone database, empty = UTC.
func Parse(expression, zone string) (Schedule, error) {
	if zone == "" {
		zone = "UTC"
	}
	if strings.HasPrefix(expression, "TZ=") || strings.HasPrefix(expression, "CRON_TZ=") {
		return Schedule{}, fmt.Errorf("the expression %q names a time zone itself", expression)
	}
	if _, err := time.LoadLocation(zone); err != nil || zone == "Local" || strings.ContainsAny(zone, " \t") {
		return Schedule{}, fmt.Errorf("there is no time zone %q", zone)
	}
	spec, err := parser.Parse("CRON_TZ=" + zone + " " + expression)
	if err != nil {
		return Schedule{}, fmt.Errorf("the expression %q: %w", expression, err)
	}
	s := Schedule{spec: spec}
	if text, ok := strings.CutPrefix(expression, "@every "); ok {
		if d, err := time.ParseDuration(text); err != nil || d < time.Second {
			return Schedule{}, fmt.Errorf("the expression %q: the interval must be at least 1s", expression)
		}
	}
	if interval, ok := spec.(cron.ConstantDelaySchedule); ok {
		s.every = interval.Delay
	} else if spec.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, fmt.Errorf("the expression %q names a time that never comes", expression)
	}
	return s, nil
}

// Next is the first occurrence after the given one, or time. Zero = there is none within five years.
func (s Schedule) Next(after time.Time) time.Time {
	if s.every > 0 {
		return after.Add(s.every)
	}
	return s.spec.Next(after)
}

// Due are the occurrences after last up to now, the oldest first, at most so many.
func (s Schedule) Due(last, now time.Time, most int) []time.Time {
	var due []time.Time
	for t := s.Next(last); !t.IsZero() && !t.After(now) && len(due) < most; t = s.Next(t) {
		due = append(due, t)
	}
	return due
}

// Latest is the last occurrence after last up to now; false = there is none. What it costs does not grow with the time that
// has passed: it looks from the end, over twice the time at each look.
func (s Schedule) Latest(last, now time.Time) (time.Time, bool) {
	if s.every > 0 {
		n := now.Sub(last) / s.every
		return last.Add(n * s.every), n > 0
	}
	for back := time.Minute; ; back *= 2 {
		from := now.Add(-back)
		if from.Before(last) || back > 20*365*24*time.Hour {
			from = last
		}
		t := s.Next(from)
		if !t.IsZero() && !t.After(now) {
			for next := s.Next(t); !next.IsZero() && !next.After(now); next = s.Next(t) {
				t = next
			}
			return t, true
		}
		if !from.After(last) {
			return time.Time{}, false
		}
	}
}
