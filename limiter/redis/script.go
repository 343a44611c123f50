package redislimiter

import (
	"context"
	"crypto/rand"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/prelude.lua
var prelude string

//go:embed lua/sync.lua
var syncSource string

//go:embed lua/admit.lua
var admitSource string

//go:embed lua/renew.lua
var renewSource string

//go:embed lua/sweep_gates.lua
var sweepGatesSource string

//go:embed lua/sweep_rates.lua
var sweepRatesSource string

var (
	syncScript       = redis.NewScript(prelude + syncSource)
	admitScript      = redis.NewScript(prelude + admitSource)
	renewScript      = redis.NewScript(prelude + renewSource)
	sweepGatesScript = redis.NewScript(prelude + sweepGatesSource)
	sweepRatesScript = redis.NewScript(prelude + sweepRatesSource)
)

// run runs a script: one round trip, and one more where the server does not know the script yet. The first key is that of
// the limits.
func (l *Limiter) run(ctx context.Context, script *redis.Script, known string, keys []string, args ...any) *redis.Cmd {
	all := append([]any{known, rand.Text(), l.options.Lease.Microseconds()}, args...)
	return script.Run(ctx, l.client, keys, all...)
}
