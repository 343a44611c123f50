package devpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Ports are picked below the range from which Linux and macOS take the local ports of outgoing
// connections: a client that redials a stopped server must not be able to occupy the server's own port.
const (
	firstPort = 20000
	lastPort  = 32000

	portBlock  = 200
	portBlocks = (lastPort - firstPort) / portBlock
)

const pollInterval = 10 * time.Millisecond

// process is a child that runs on behalf of a Server.
type process struct {
	cmd *exec.Cmd
	// home is here for supervise to hold on to: the lock and the janitor's pipe would be closed if they
	// were collected after the caller dropped the Server.
	home *home
	done chan struct{}
	err  error // what Wait said; read it after done is closed
}

// startProcess starts cmd so that it dies when this process dies.
func (h *home) startProcess(cmd *exec.Cmd) (*process, error) {
	if err := h.account.apply(cmd); err != nil {
		return nil, err
	}
	cmd.Env = serverEnv()
	cmd.WaitDelay = 2 * time.Second
	p := &process{cmd: cmd, home: h, done: make(chan struct{})}
	started := make(chan error)
	go supervise(p, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	return p, nil
}

// supervise starts the child and waits for its end on one OS thread, because Linux sends the parent-death
// signal when the thread that forked ends, not when the process does.
func supervise(p *process, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	if err == nil {
		err = afterStart(p.cmd)
	}
	started <- err
	if p.cmd.Process == nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.done)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// end signals the server and waits until it is gone. When ctx ends, the server is killed.
func (p *process) end(ctx context.Context, how stopSignal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := sendSignal(p.cmd.Process, how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		if err := p.kill(); err != nil {
			return err
		}
		return fmt.Errorf("killed it, as it had not ended in time: %w", ctx.Err())
	}
}

func (p *process) kill() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := killTree(p.cmd.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("devpg: kill Postgres: %w", err)
	}
	<-p.done
	return nil
}

// serverEnv is our environment without what would steer Postgres or make its messages unreadable to us.
func serverEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG") || strings.HasPrefix(kv, "NOTIFY_SOCKET=")
	})
	return append(env, "LC_ALL=C")
}

// launch starts the postmaster and waits until it is ready. s.mu is held.
func (s *Server) launch(ctx context.Context) error {
	for {
		port := s.port
		if port == 0 {
			port = FreePort()
		}
		p, offset, err := s.exec(port)
		if err != nil {
			return err
		}
		err = p.waitReady(ctx, s.home)
		if err == nil {
			s.proc, s.port = p, port
			s.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
			s.home.tellJanitor(p.pid())
			return nil
		}
		_ = p.kill()
		said := s.home.logSince(offset)
		if ctx.Err() != nil || !passing(said) {
			return fmt.Errorf("%w; its log (%s) says:\n%s", err, s.home.logPath(), said)
		}
		if err := pause(ctx, 10*pollInterval); err != nil {
			return fmt.Errorf("%w; its log says:\n%s", err, said)
		}
	}
}

// passing tells whether a failed start is worth repeating: the port was taken by somebody else, or
// backends of a killed postmaster have not all noticed its death.
func passing(log string) bool {
	for _, s := range []string{
		"could not create any TCP/IP sockets",
		"pre-existing shared memory block",
		"lock file \"postmaster.pid\" already exists",
		".lock\" already exists",
	} {
		if strings.Contains(log, s) {
			return true
		}
	}
	return false
}

// exec starts a postmaster and returns where in the log its messages begin.
func (s *Server) exec(port int) (*process, int64, error) {
	log, err := os.OpenFile(s.home.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, err
	}
	defer log.Close()
	offset, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, err
	}
	cmd := exec.Command(filepath.Join(s.bin, exe("postgres")), s.args(port)...)
	cmd.Dir = s.home.data()
	cmd.Stdout, cmd.Stderr = log, log
	if s.opts.Log != nil {
		out := io.MultiWriter(s.opts.Log, &appendTo{path: s.home.logPath()})
		cmd.Stdout, cmd.Stderr = out, out
	}
	p, err := s.home.startProcess(cmd)
	return p, offset, err
}

// appendTo opens its file for each write, so that nobody has to close it when the last writer is gone.
type appendTo struct{ path string }

func (a *appendTo) Write(b []byte) (int, error) {
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return len(b), nil // the log of a directory that was removed is nobody's loss
	}
	defer f.Close()
	return f.Write(b)
}

func (s *Server) args(port int) []string {
	set := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": s.home.socketDir(),
		"max_connections":         "400",
		"shared_buffers":          "128MB",
		"log_checkpoints":         "off", // dropping a database makes one each time
	}
	if !s.opts.Durable {
		// Turning synchronous_commit off as well would save next to nothing, as nothing waits for the
		// disk any more, and would lose the last commits when the server is killed.
		set["fsync"], set["full_page_writes"] = "off", "off"
	}
	maps.Copy(set, s.opts.Settings)
	set["port"] = strconv.Itoa(port)
	args := []string{"-D", s.home.data()}
	for _, k := range slices.Sorted(maps.Keys(set)) {
		args = append(args, "-c", k+"="+set[k])
	}
	return args
}

// waitReady returns when the postmaster says in its pid file that it accepts connections.
func (p *process) waitReady(ctx context.Context, h *home) error {
	for {
		// The file of a predecessor that was killed may still be there.
		if f := h.pidFile(); f.ready && f.pid == p.pid() {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("the server ended at once (%v)", p.err)
		default:
		}
		if err := pause(ctx, pollInterval); err != nil {
			return fmt.Errorf("the server was not ready in time: %w", err)
		}
	}
}

// givenPorts are those that FreePort has returned in this process.
var givenPorts sync.Map

// FreePort returns a port of 127.0.0.1 on which nobody listens, for a server that must be told its port. It is none of those that
// systems take for outgoing connections, so nobody gets it by chance before the server does, or between two starts of it, and this
// process gets it only once.
func FreePort() int {
	for i := range 1000 {
		// Another process may have been given a port on which nobody listens just now. So each begins in a block of its own.
		port := firstPort + os.Getpid()%portBlocks*portBlock + rand.IntN(portBlock)
		if i > portBlock {
			port = firstPort + rand.IntN(lastPort-firstPort)
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		l.Close()
		if _, given := givenPorts.LoadOrStore(port, true); !given {
			return port
		}
	}
	return firstPort
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
