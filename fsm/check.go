package fsm

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxName  = 255  // bytes of the name of a machine, step, queue, signal, limit
	maxKey   = 1024 // bytes of a key; an index entry of Postgres holds about 2,700
	maxNames = 1000 // names of one await
)

// CheckName refuses, as an *InvalidError about field, a name that is empty, longer than 255 bytes, not valid
// UTF-8, or that contains NUL. Names are those of machines, steps, queues and signals.
func CheckName(field, s string) error { return checkText(field, s, maxName) }

// CheckKey refuses, as an *InvalidError about field, a key that is empty, longer than 1,024 bytes, not valid
// UTF-8, or that contains NUL. Keys are correlation keys, dedup keys and request ids.
func CheckKey(field, s string) error { return checkText(field, s, maxKey) }

// CheckLimitName is CheckName for the configured name of a rate limit or gate, which may not contain ':' either:
// it separates the name from the partition in "name:partition".
func CheckLimitName(field, s string) error {
	if err := CheckName(field, s); err != nil {
		return err
	}
	if strings.Contains(s, ":") {
		return invalid(field, "must not contain ':', which separates a name from its partition, is %q", s)
	}
	return nil
}

// CheckPartitioned refuses a concurrency key or the key of a rate limit that is neither "name" nor
// "name:partition"; the partition may contain further colons.
func CheckPartitioned(field, s string) error {
	if err := CheckKey(field, s); err != nil {
		return err
	}
	name, partition, parted := strings.Cut(s, ":")
	if err := CheckName(field, name); err != nil {
		return err
	}
	if parted && partition == "" {
		return invalid(field, "must have a partition after ':', is %q", s)
	}
	return nil
}

func checkText(field, s string, limit int) error {
	switch {
	case s == "":
		return invalid(field, "must not be empty")
	case len(s) > limit:
		return invalid(field, "must be at most %d bytes, has %d", limit, len(s))
	case !utf8.ValidString(s):
		return invalid(field, "must be valid UTF-8, is %q", s)
	case strings.IndexByte(s, 0) >= 0:
		return invalid(field, "must not contain NUL, is %q", s)
	}
	return nil
}

// CheckDuration refuses a negative duration.
func CheckDuration(field string, d time.Duration) error {
	if d < 0 {
		return invalid(field, "must not be negative, is %s", d)
	}
	return nil
}

// microseconds rounds up to what Postgres resolves, so that a tiny delay never becomes none.
func microseconds(d time.Duration) time.Duration {
	if up := d + time.Microsecond - 1; up > d { // false when it overflows
		d = up
	}
	return d.Truncate(time.Microsecond)
}

// The range of a timestamptz; its lower end is cut to whole years.
var (
	minTime = time.Date(-4712, 1, 1, 0, 0, 0, 0, time.UTC)
	maxTime = time.Date(294276, 12, 31, 0, 0, 0, 0, time.UTC)
)

// CheckTime refuses the zero time and times that Postgres cannot hold: outside 4713 BC to 294276 AD.
func CheckTime(field string, t time.Time) error {
	switch {
	case t.IsZero():
		return invalid(field, "must not be the zero time")
	case t.Before(minTime) || t.After(maxTime):
		return invalid(field, "must be between 4713 BC and 294276 AD, is in the year %d", t.Year())
	}
	return nil
}

// rateLimit is a rate limit with the weight of one claim, as given by the user.
type rateLimit struct {
	key     string
	weights []float64
}

func (r *rateLimit) check() (weight float64, err error) {
	if err := CheckPartitioned("rate limit", r.key); err != nil {
		return 0, err
	}
	switch len(r.weights) {
	case 0:
		return 1, nil
	case 1:
	default:
		return 0, invalid("weight of rate limit "+r.key, "must be one number, %d are given", len(r.weights))
	}
	w := r.weights[0]
	if !(w > 0) || math.IsInf(w, 0) {
		return 0, invalid("weight of rate limit "+r.key, "must be a positive finite number, is %v", w)
	}
	return w, nil
}

// admissible also asks the engine whether it knows the limit and can ever admit the weight.
func (r *rateLimit) admissible(l *Limits) (weight float64, err error) {
	weight, err = r.check()
	if err == nil && l.CheckRateLimit != nil {
		name, _, _ := strings.Cut(r.key, ":")
		err = l.CheckRateLimit(name, weight)
	}
	return weight, err
}
