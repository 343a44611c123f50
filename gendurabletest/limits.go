package gendurabletest

import (
	"context"
	"slices"
	"time"

	"github.com/gendurable/gendurable/limiter"
)

// Limiter knows the rate limits of the machines and of Config.RateLimits, without a bound, besides those that are stored: for
// the ClientConfig.Limiter of other clients in the test, whose inserts with an unknown limit are refused.
func (r *Runner) Limiter() limiter.Limiter { return r.limiter }

// unbounded adds rate limits to those that are stored. It must not store them itself: two tests in transactions of their own
// that name the same limit would meet at its unique key, and the second wait until the first has ended.
type unbounded struct {
	limiter.Limiter
	names []string
}

func (u *unbounded) SyncConfig(ctx context.Context, own limiter.Config) (limiter.Config, error) {
	inForce, err := u.Limiter.SyncConfig(ctx, own)
	if err != nil {
		return inForce, err
	}
	for _, name := range u.names {
		if !slices.ContainsFunc(inForce.Rates, func(l limiter.Rate) bool { return l.Name == name }) {
			inForce.Rates = append(inForce.Rates, limiter.Rate{Name: name, Allowed: limiter.MaxTokens, Per: time.Second})
		}
	}
	return inForce, nil
}

// rateLimits are the names that the machines and the test use, each once.
func (r *Runner) rateLimits() []string {
	names := slices.Clone(r.cfg.RateLimits)
	for _, def := range r.cfg.Machines {
		if def != nil {
			names = append(names, def.Spec().RateLimits...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
