package limiter

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind tells rates from gates. The two have names of their own: a rate and a gate may be called the same.
type Kind string

// The kinds, as they are stored.
const (
	KindRate Kind = "rate"
	KindGate Kind = "conc"
)

// Name names a limit.
type Name struct {
	Kind Kind
	Name string
}

// Bounds of a configuration.
const (
	// MaxName is the length of a limit's name, in bytes.
	MaxName = 255
	// MaxShards is the number of shards.
	MaxShards = 1024
	// MaxTokens is the size of a limit: whole numbers up to it are exact.
	MaxTokens = 1 << 40
)

// Rate configures the rate limit of a name.
type Rate struct {
	Name string
	// Allowed is how many tokens come in Per, evenly. Both are positive.
	Allowed float64
	Per     time.Duration
	// Burst is the most tokens that are saved up, and so the most that may be taken at once. Zero: Allowed.
	Burst float64
	// Shards is over how many counters a key is spread, so that as many processes can ask for it at the same time.
	// Zero: 1. At most Burst (but 1 is always allowed).
	Shards int
}

// Gate configures the gate of a name.
type Gate struct {
	Name string
	// Limit is how many may hold a slot of one key at once. Positive.
	Limit int
	// Shards is as in Rate. Zero: 1. At most Limit.
	Shards int
}

// Config is a set of limits.
type Config struct {
	Rates []Rate
	Gates []Gate
}

// Normalize fills in the defaults.
func (r Rate) Normalize() Rate {
	if r.Burst == 0 {
		r.Burst = r.Allowed
	}
	r.Shards = max(r.Shards, 1)
	return r
}

// PerSecond is the rate in tokens a second.
func (r Rate) PerSecond() float64 { return r.Allowed / r.Per.Seconds() }

// Normalize fills in the defaults.
func (g Gate) Normalize() Gate {
	g.Shards = max(g.Shards, 1)
	return g
}

// Validate says what is wrong with the limit; nil if nothing.
func (r Rate) Validate() error {
	if err := validName(r.Name); err != nil {
		return fmt.Errorf("rate limit %q: %w", r.Name, err)
	}
	n := r.Normalize()
	switch {
	case !positive(r.Allowed):
		return fmt.Errorf("rate limit %q: Allowed is %v; it must be above 0 and at most %d", r.Name, r.Allowed, MaxTokens)
	case r.Per <= 0:
		return fmt.Errorf("rate limit %q: Per is %v; it must be positive", r.Name, r.Per)
	case !positive(n.Burst):
		return fmt.Errorf("rate limit %q: Burst is %v; it must be above 0 and at most %d (or 0: as many as Allowed)", r.Name, r.Burst, MaxTokens)
	}
	if err := validShards(r.Shards, math.Floor(n.Burst), "Burst"); err != nil {
		return fmt.Errorf("rate limit %q: %w", r.Name, err)
	}
	return nil
}

// Validate says what is wrong with the limit; nil if nothing.
func (g Gate) Validate() error {
	if err := validName(g.Name); err != nil {
		return fmt.Errorf("gate %q: %w", g.Name, err)
	}
	if g.Limit <= 0 || g.Limit > math.MaxInt32 {
		return fmt.Errorf("gate %q: Limit is %d; it must be between 1 and %d", g.Name, g.Limit, math.MaxInt32)
	}
	if err := validShards(g.Shards, float64(g.Limit), "Limit"); err != nil {
		return fmt.Errorf("gate %q: %w", g.Name, err)
	}
	return nil
}

// Validate says everything that is wrong with the set; nil if nothing.
func (c Config) Validate() error {
	var wrong []error
	seen := map[Name]bool{}
	check := func(n Name, err error) {
		if err == nil && seen[n] {
			err = fmt.Errorf("limit %q of kind %s is given twice", n.Name, n.Kind)
		}
		seen[n] = true
		if err != nil {
			wrong = append(wrong, fmt.Errorf("limiter: %w", err))
		}
	}
	for _, r := range c.Rates {
		check(Name{KindRate, r.Name}, r.Validate())
	}
	for _, g := range c.Gates {
		check(Name{KindGate, g.Name}, g.Validate())
	}
	return errors.Join(wrong...)
}

// GateNames are the names of the gates, sorted.
func (c Config) GateNames() []string {
	names := make([]string, len(c.Gates))
	for i, g := range c.Gates {
		names[i] = g.Name
	}
	slices.Sort(names)
	return names
}

// NameOf is the limit's name in a key: what is before the first ':'.
func NameOf(key string) string {
	name, _, _ := strings.Cut(key, ":")
	return name
}

func validName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > MaxName:
		return fmt.Errorf("the name is longer than %d bytes", MaxName)
	case strings.Contains(name, ":"):
		return errors.New("the name contains ':', which separates it from a partition")
	case !utf8.ValidString(name) || strings.Contains(name, "\x00"):
		return errors.New("the name is not valid UTF-8, or contains a NUL")
	}
	return nil
}

func validShards(shards int, most float64, of string) error {
	switch {
	case shards < 0 || shards > MaxShards:
		return fmt.Errorf("its Shards is %d; it must be between 1 and %d (or 0: 1)", shards, MaxShards)
	case shards > 1 && float64(shards) > most:
		return fmt.Errorf("its Shards is %d, but %s is only %v: a shard that has nothing to give serves nobody", shards, of, most)
	}
	return nil
}

func positive(f float64) bool { return f > 0 && f <= MaxTokens }
