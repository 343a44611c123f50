package redislimiter

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// envServer names the redis-server program. Otherwise it is looked for in the PATH.
const envServer = "GENDURABLE_TEST_REDIS"

// patience bounds every wait.
const patience = 60 * time.Second

// server is a private redis-server. It keeps nothing, and ends with the test, or with this process.
type server struct {
	dir     string
	args    []string
	network string
	address string

	shell *exec.Cmd
	alive io.Closer // what tells the shell, when closed, to kill the server
}

func program(t testing.TB) string {
	t.Helper()
	name := os.Getenv(envServer)
	if name == "" {
		name = "redis-server"
	}
	found, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("these tests need a Redis of their own, and there is none: %v. Install it (Debian: apt-get install redis-server), or say where "+
			"the program is (%s)", err, envServer)
	}
	return found
}

// start starts a server on a unix socket.
func start(t testing.TB) *server {
	t.Helper()
	s := prepare(t)
	s.network, s.address = "unix", filepath.Join(s.dir, "socket")
	s.args = append(s.args, "--port", "0", "--unixsocket", s.address)
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
	return s
}

func prepare(t testing.TB) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "redis") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	s := &server{dir: dir}
	s.args = []string{program(t), "--save", "", "--appendonly", "no", "--dir", dir, "--logfile", filepath.Join(dir, "log")}
	t.Cleanup(func() {
		s.kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run starts the server, below a shell that kills it as soon as nobody holds the other end of its standard input.
func (s *server) run(t testing.TB) error {
	t.Helper()
	s.shell = exec.Command("sh", append([]string{"-c", `"$@" & read -r _; kill -9 $!; wait`, "sh"}, s.args...)...)
	in, err := s.shell.StdinPipe()
	if err != nil {
		return err
	}
	s.alive = in
	if err := s.shell.Start(); err != nil {
		return err
	}
	for late := time.Now().Add(patience); ; {
		err := s.ping()
		if err == nil {
			return nil
		}
		if time.Now().After(late) {
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			s.kill()
			return fmt.Errorf("redis-server does not answer: %w\n%s", err, log)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func (s *server) ping() error {
	line, err := net.Dial(s.network, s.address) // a client would complain about every attempt
	if err != nil {
		return err
	}
	_ = line.Close()
	client := redis.NewClient(s.options())
	defer func() { _ = client.Close() }()
	return client.Ping(context.Background()).Err()
}

func (s *server) options() *redis.Options {
	return &redis.Options{Network: s.network, Addr: s.address}
}

// kill ends the server without notice.
func (s *server) kill() {
	if s.shell != nil {
		_ = s.alive.Close()
		_ = s.shell.Wait()
		s.shell = nil
	}
}

// restart kills the server and starts it again, empty.
func (s *server) restart(t testing.TB) {
	t.Helper()
	s.kill()
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
}

// client is another process's client. It ends with the test.
func (s *server) client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(s.options())
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// startCluster starts a server that is a cluster of its own, and returns what makes clients of it.
func startCluster(t testing.TB) func(t testing.TB) redis.UniversalClient {
	t.Helper()
	s := prepare(t)
	plain := s.args
	for try := 0; ; try++ { // another process may take a port that was free
		ports := freePorts(t, 2)
		s.network, s.address = "tcp", net.JoinHostPort("127.0.0.1", ports[0])
		s.args = append(plain[:len(plain):len(plain)], "--bind", "127.0.0.1", "--port", ports[0], "--cluster-enabled", "yes", "--cluster-port", ports[1])
		err := s.claimSlots(t)
		if err == nil {
			break
		}
		if s.kill(); try == 3 {
			t.Fatal(err)
		}
	}
	return func(t testing.TB) redis.UniversalClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.address}})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// claimSlots starts the server and waits until it serves all hash slots.
func (s *server) claimSlots(t testing.TB) error {
	t.Helper()
	if err := s.run(t); err != nil {
		return err
	}
	c := redis.NewClient(s.options())
	defer func() { _ = c.Close() }()
	if err := c.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		return err
	}
	for late := time.Now().Add(patience); ; {
		err := c.Set(t.Context(), "{any}", 1, 0).Err()
		if err == nil || time.Now().After(late) {
			return err
		}
		<-time.After(10 * time.Millisecond)
	}
}

func freePorts(t testing.TB, n int) (ports []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports
}

var namespaces atomic.Int64

// namespace is one that no other test of the server uses.
func namespace() string { return fmt.Sprintf("test%d", namespaces.Add(1)) }
