package redislimiter

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gendurable/gendurable/limiter"
)

// field is a limit's field in the hash of limits. Fields without a ':' are not limits; names have none.
func field(n limiter.Name) string { return string(n.Kind) + ":" + n.Name }

// fields are the limits as fields and values: tokens a second, size and shards.
func fields(c limiter.Config) []any {
	var out []any
	put := func(kind limiter.Kind, name string, perSecond, size float64, shards int) {
		out = append(out, field(limiter.Name{Kind: kind, Name: name}), fmt.Sprintf("%.17g %.17g %d", perSecond, size, shards))
	}
	for _, r := range c.Rates {
		r = r.Normalize()
		put(limiter.KindRate, r.Name, r.PerSecond(), r.Burst, r.Shards)
	}
	for _, g := range c.Gates {
		g = g.Normalize()
		put(limiter.KindGate, g.Name, 0, float64(g.Limit), g.Shards)
	}
	return out
}

// readConfig reads the hash of limits.
func readConfig(reply any) (c limiter.Config, err error) {
	pairs, err := texts(reply)
	if err != nil {
		return c, err
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		kind, name, isLimit := strings.Cut(pairs[i], ":")
		if !isLimit {
			continue
		}
		var perSecond, size float64
		var shards int
		if _, err := fmt.Sscan(pairs[i+1], &perSecond, &size, &shards); err != nil {
			return limiter.Config{}, fmt.Errorf("the limit %q is stored as %q: %w", pairs[i], pairs[i+1], err)
		}
		switch limiter.Kind(kind) {
		case limiter.KindRate:
			c.Rates = append(c.Rates, limiter.Rate{Name: name, Allowed: perSecond, Per: time.Second, Burst: size, Shards: shards})
		case limiter.KindGate:
			c.Gates = append(c.Gates, limiter.Gate{Name: name, Limit: int(size), Shards: shards})
		}
	}
	slices.SortFunc(c.Rates, func(a, b limiter.Rate) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Gates, func(a, b limiter.Gate) int { return cmp.Compare(a.Name, b.Name) })
	return c, nil
}

// texts are the strings of a list.
func texts(reply any) ([]string, error) {
	list, ok := reply.([]any)
	out := make([]string, len(list))
	for i, one := range list {
		var is bool
		out[i], is = one.(string)
		ok = ok && is
	}
	if !ok {
		return nil, fmt.Errorf("unexpected answer %v", reply)
	}
	return out, nil
}

// without is c but for the limits named.
func without(c limiter.Config, names []limiter.Name) (left limiter.Config) {
	for _, r := range c.Rates {
		if !slices.Contains(names, limiter.Name{Kind: limiter.KindRate, Name: r.Name}) {
			left.Rates = append(left.Rates, r)
		}
	}
	for _, g := range c.Gates {
		if !slices.Contains(names, limiter.Name{Kind: limiter.KindGate, Name: g.Name}) {
			left.Gates = append(left.Gates, g)
		}
	}
	return left
}
