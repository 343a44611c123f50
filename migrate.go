package gendurable

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/pg"
)

// Migrate creates or updates the engine's tables in the pool's current schema. Any number of processes may call it
// at once. It adopts the tables of the original engine's schema version 3. See the package pg for other
// schemas, for going down, and for printing the SQL to run with a tool of your own.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if err := pg.Migrate(ctx, pool); err != nil {
		return fmt.Errorf("gendurable: migrate: %w", err)
	}
	return nil
}
