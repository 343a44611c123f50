package gendurable_test

import (
	"os"
	"time"

	"github.com/gendurable/gendurable"
)

// envPokes names a transport. Then engines of these tests that do not choose one themselves have it. See the target pokes of
// the Makefile.
const envPokes = "GENDURABLE_TEST_POKES"

// withTestPokes gives a configuration the transport of the run. With none, the poll is all there is: it is made often, also where
// a test has turned it off.
func withTestPokes(cfg gendurable.Config) gendurable.Config {
	pokes := gendurable.PokeTransport(os.Getenv(envPokes))
	if pokes == "" || cfg.Pokes != "" || cfg.Cluster != nil {
		return cfg
	}
	cfg.Pokes = pokes
	if pokes == gendurable.PokePostgres && cfg.ListenURL == "" {
		cfg.ListenURL = os.Getenv(envListen) // in a worker process; elsewhere it is empty
	}
	const often = 50 * time.Millisecond
	if pokes == gendurable.PokeNone {
		for _, poll := range []*time.Duration{&cfg.PollBusy, &cfg.PollIdle} {
			if *poll == 0 || *poll > often {
				*poll = often
			}
		}
	}
	return cfg
}
