package gendurable_test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/internal/devpg"
)

// envBouncer names a pgbouncer program. Then the databases of these tests are reached through it, in transaction mode, by pools
// without named statements, and only listeners connect directly. See the target pgbouncer of the Makefile.
const envBouncer = "GENDURABLE_TEST_PGBOUNCER"

// bouncer is the pgbouncer that the tests of this process share.
type bouncer struct {
	cmd *exec.Cmd
	dir string
	url *url.URL // of the server, with any database

	address string
}

var (
	theBouncer   *bouncer
	startBouncer sync.Once
	// straight has the direct connection string of each pool that goes through the bouncer.
	straight sync.Map
)

// bounced is a pool on the same database through pgbouncer. It ends with the test.
func bounced(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	server := pool.Config().ConnString()
	startBouncer.Do(func() {
		b, err := runBouncer(os.Getenv(envBouncer), server)
		if err != nil {
			t.Fatalf("pgbouncer: %v", err)
		}
		theBouncer = b
	})
	if theBouncer == nil {
		t.Fatal("pgbouncer did not start")
	}
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = theBouncer.address
	q := u.Query()
	q.Set("sslmode", "disable")
	q.Set("default_query_exec_mode", "cache_describe")
	q.Set("pool_max_conns", "8")
	u.RawQuery = q.Encode()
	through, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	straight.Store(through, server)
	t.Cleanup(func() {
		through.Close()
		straight.Delete(through)
	})
	return through
}

// direct is the connection string of a pool's database without a proxy.
func direct(pool *pgxpool.Pool) string {
	if server, ok := straight.Load(pool); ok {
		return server.(string)
	}
	return pool.Config().ConnString()
}

// runBouncer starts a pgbouncer in front of the server and waits until it listens.
func runBouncer(program, server string) (*bouncer, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	port := devpg.FreePort()
	b := &bouncer{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), url: u}
	if b.dir, err = os.MkdirTemp("", "pgbouncer"); err != nil {
		return nil, err
	}
	config := filepath.Join(b.dir, "pgbouncer.ini")
	if err := os.WriteFile(config, []byte(b.config(port)), 0o644); err != nil {
		return nil, err
	}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(b.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	b.cmd = exec.Command(program, config)
	b.cmd.Stdout, b.cmd.Stderr = log, log
	b.cmd.SysProcAttr = bouncerAttributes()
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	for late := time.Now().Add(patience); ; {
		conn, err := net.Dial("tcp", b.address)
		if err == nil {
			return b, conn.Close()
		}
		if time.Now().After(late) {
			b.stop()
			said, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("it does not listen: %w\n%s", err, said)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func (b *bouncer) config(port int) string {
	user, serverPort := b.url.User.Username(), b.url.Port()
	if serverPort == "" {
		serverPort = "5432"
	}
	login := " user=" + user
	if password, ok := b.url.User.Password(); ok {
		login += " password=" + password
	}
	// No ignore_startup_parameters: the engine must not need any. More connections than a test's pools have, so that one
	// that holds a transaction open does not hold up the others.
	return `[databases]
* = host=` + b.url.Hostname() + ` port=` + serverPort + login + `
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ` + strconv.Itoa(port) + `
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 2000
default_pool_size = 12
server_idle_timeout = 10
`
}

func (b *bouncer) stop() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
	_ = os.RemoveAll(b.dir)
}

// stopBouncer ends the process's pgbouncer, if there is one.
func stopBouncer() {
	if theBouncer != nil {
		theBouncer.stop()
	}
}
