package docs_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
)

func startLimited(ctx context.Context, pool *pgxpool.Pool, limits limiter.Limiter) (*gendurable.Engine, error) {
	return gendurable.Start(ctx, pool, gendurable.Config{
		Machines:   []fsm.Definition{Checkout},
		Limiter:    limits,
		RateLimits: map[string]gendurable.RateLimit{"stripe": {Allowed: 100, Per: time.Second}},
		Gates:      map[string]gendurable.Gate{"export": {Limit: 4}},
	})
}

var _ = startLimited
