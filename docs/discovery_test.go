package docs_test

import (
	"context"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

func startTelling(ctx context.Context, pool *pgxpool.Pool) (*gendurable.Engine, error) {
	return gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{Checkout},
		Pokes:    gendurable.PokePostgres,
	})
}

func clientTelling(ctx context.Context, pool *pgxpool.Pool) (*gendurable.Client, error) {
	return gendurable.NewClient(ctx, pool, gendurable.ClientConfig{
		Machines: []fsm.Definition{Checkout},
		Pokes:    gendurable.PokePostgres,
	})
}

func startBehindProxy(ctx context.Context) (*gendurable.Engine, error) {
	pool, err := pgxpool.New(ctx, "postgres://app@pgbouncer:6432/app?default_query_exec_mode=cache_describe")
	if err != nil {
		return nil, err
	}
	return gendurable.Start(ctx, pool, gendurable.Config{
		Machines:  []fsm.Definition{Checkout},
		Pokes:     gendurable.PokePostgres,
		ListenURL: os.Getenv("DIRECT_DATABASE_URL"),
	})
}

func startSealed(ctx context.Context, pool *pgxpool.Pool, codec gendurable.Codec) (*gendurable.Engine, error) {
	return gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{Checkout},
		Codec:    codec,
	})
}

var _ = []any{startTelling, clientTelling, startBehindProxy, startSealed}
