package devpg

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
)

// With runs fn with a pool on a server that lives as long as fn does: what a small program needs that wants to run
// anywhere. It returns the error of fn, or of the server.
func With(ctx context.Context, o Options, fn func(pool *pgxpool.Pool) error) (err error) {
	server, err := Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	pool, err := pgxpool.New(ctx, server.URL())
	if err != nil {
		return err
	}
	defer pool.Close()
	return fn(pool)
}
