package cron

import (
	"slices"
	"testing"
	"time"
)

func parse(t *testing.T, expression, zone string) Schedule {
	t.Helper()
	s, err := Parse(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{"", ""}, {"* * * *", ""}, {"61 * * * *", ""}, {"* * * * *", "Nowhere/City"}, {"* * * * *", "Local"},
		{"TZ=UTC * * * * *", ""}, {"CRON_TZ=UTC * * * * *", ""}, {"0 0 30 2 *", ""}, {"@every -1s", ""}, {"@sometimes", ""}, {"* * * * *", "UTC * "}} {
		if _, err := Parse(c[0], c[1]); err == nil {
			t.Errorf("%q in %q was accepted", c[0], c[1])
		}
	}
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ expression, zone, last, now, latest, next string }{
		{"0 * * * *", "", "2026-03-01T10:00:00Z", "2026-03-01T10:59:59.9Z", "", "2026-03-01T11:00:00Z"},
		{"0 * * * *", "", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z", "2026-03-01T11:00:00Z", "2026-03-01T11:00:00Z"},
		{"* * * * * *", "", "2020-01-01T00:00:00.5Z", "2026-03-01T10:00:00.7Z", "2026-03-01T10:00:00Z", "2020-01-01T00:00:01Z"},
		{"30 6 * * MON-FRI", "Europe/Berlin", "2026-03-06T05:30:00Z", "2026-03-09T12:00:00Z", "2026-03-09T05:30:00Z", "2026-03-09T05:30:00Z"},
		{"0 0 29 2 *", "", "2020-02-29T00:00:00Z", "2027-01-01T00:00:00Z", "2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"},
		{"@every 90m", "", "2026-03-01T10:00:00.25Z", "2026-03-01T14:00:00Z", "2026-03-01T13:00:00.25Z", "2026-03-01T11:30:00.25Z"},
		{"@every 90m", "", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z", "", "2026-03-01T11:30:00Z"},
		// The clocks go forward at 1:00 UTC: 2:30 in Berlin does not come that day.
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T01:30:00Z", "2026-03-29T20:00:00Z", "", "2026-03-30T00:30:00Z"},
		// They go back at 1:00 UTC: 2:30 comes twice.
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T20:00:00Z", "2026-10-25T01:30:00Z", "2026-10-25T01:30:00Z"},
	} {
		s := parse(t, c.expression, c.zone)
		latest, ok := s.Latest(at(t, c.last), at(t, c.now))
		if ok != (c.latest != "") || ok && !latest.Equal(at(t, c.latest)) {
			t.Errorf("%s after %s at %s: the latest is %v, %v; want %s", c.expression, c.last, c.now, latest.UTC(), ok, c.latest)
		}
		if next := s.Next(at(t, c.last)); !next.Equal(at(t, c.next)) {
			t.Errorf("%s after %s: the next is %v, want %s", c.expression, c.last, next.UTC(), c.next)
		}
		due := s.Due(at(t, c.last), at(t, c.now), 1000)
		if ok != (len(due) > 0) || len(due) < 1000 && ok && !due[len(due)-1].Equal(latest) || !slices.IsSortedFunc(due, time.Time.Compare) {
			t.Errorf("%s after %s at %s: due are %v", c.expression, c.last, c.now, due)
		}
	}
}
