package devpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// OldestMajor is the oldest major version of Postgres that the project supports, and the default of
// Options.MinVersion.
const OldestMajor = 15

// startTimeout bounds Start and Restart when the caller's context has no deadline. Recovery after a
// crash takes seconds at most for the data that tests and demos make.
const startTimeout = 2 * time.Minute

// ErrExternal is returned by Restart and Kill for a server that devpg did not start.
var ErrExternal = errors.New("devpg: this server was given by the environment and is not ours to restart or kill; ask for a private one with Options.Private")

// Options says what kind of server Start gives. The zero value is a throw-away server for tests.
type Options struct {
	// Dir is where the server keeps its data (in Dir/data), its log and its lock between runs. It is
	// created when missing. Empty means a temporary directory that Stop removes.
	//
	// When we run as root the server runs as an unprivileged user, who must be able to reach Dir. If a
	// parent directory shuts that user out, a directory below the temporary directory stands in for
	// Dir, always the same one for the same Dir, until Dir is removed. Server.Dir tells which one is used.
	Dir string

	// Private asks for a server of our own even if the environment names one.
	Private bool

	// Durable leaves fsync and full_page_writes on. Off by default: a crash of the machine may then
	// corrupt the data. A crash of the server or of our process costs no commit either way.
	Durable bool

	// Settings are further server settings (as in postgresql.conf). They win over the ones that devpg
	// chooses. A server from the environment ignores them.
	Settings map[string]string

	// Bin is the directory that holds initdb and postgres. Empty means to look for one; see the package
	// comment for where.
	Bin string

	// MinVersion is the oldest major version to accept when looking for binaries. Zero means OldestMajor.
	MinVersion int

	// Log receives what the server writes to its log, in addition to the file postgres.log in the
	// server's directory. It is called from one goroutine at a time.
	Log io.Writer
}

// Server is a running Postgres server. Its methods may be called from several goroutines; Stop, Restart
// and Kill take turns.
type Server struct {
	opts  Options
	url   string
	major int
	bin   string // empty for a server from the environment
	home  *home  // nil for a server from the environment

	mu      sync.Mutex
	port    int      // Invariant: fixed once the first launch succeeded, so that url stays true.
	proc    *process // the last one started, running or not
	stopped bool
}

// EnvURL returns the URL of the server that the environment names, or "" if it names none.
// GENDURABLE_DATABASE_URL goes before DATABASE_URL.
func EnvURL() string {
	if u := os.Getenv("GENDURABLE_DATABASE_URL"); u != "" {
		return u
	}
	return os.Getenv("DATABASE_URL")
}

// Start starts a server and returns once it accepts connections. If the environment names a server (see
// EnvURL) and o.Private is false, it checks that one and starts none.
//
// The server lives until Stop or until this process ends, in whatever way it ends. ctx bounds the start
// only. Another process that uses o.Dir at this time makes Start fail; a server that is left over from a
// process that died is waited for.
func Start(ctx context.Context, o Options) (*Server, error) {
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	if u := EnvURL(); u != "" && !o.Private {
		return connectExternal(ctx, u, o)
	}
	h, err := openHome(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("devpg: prepare the server's directory: %w", err)
	}
	s := &Server{opts: o, home: h}
	if err := s.startIn(ctx); err != nil {
		h.close()
		return nil, fmt.Errorf("devpg: start Postgres: %w", err)
	}
	return s, nil
}

func (s *Server) startIn(ctx context.Context) error {
	exact, err := s.home.major()
	if err != nil {
		return err
	}
	found, err := findOrInstall(ctx, search{bin: s.opts.Bin, min: s.opts.MinVersion, exact: exact, as: s.home.account})
	if err != nil {
		return err
	}
	s.bin, s.major = found.dir, found.major
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.home.waitForPredecessor(ctx); err != nil {
		return err
	}
	if exact == 0 {
		if err := s.home.initdb(ctx, s.bin, s.opts.Durable); err != nil {
			return err
		}
	}
	if err := s.home.startJanitor(); err != nil {
		return err
	}
	return s.launch(ctx)
}

// connectExternal checks a server that somebody else runs.
func connectExternal(ctx context.Context, u string, o Options) (*Server, error) {
	conn, err := pgx.Connect(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("devpg: connect to the server named by GENDURABLE_DATABASE_URL or DATABASE_URL (unset them to get a private server): %w", err)
	}
	defer conn.Close(ctx)
	var num int
	if err := conn.QueryRow(ctx, "select current_setting('server_version_num')::int").Scan(&num); err != nil {
		return nil, fmt.Errorf("devpg: ask the server for its version: %w", err)
	}
	return &Server{opts: o, url: u, major: num / 10000}, nil
}

// URL returns the connection string of the server's maintenance database over TCP. It stays the same
// across Restart and Kill.
func (s *Server) URL() string { return s.url }

// SocketURL returns a connection string over the server's Unix socket, which spares the TCP stack. Only
// the user the server runs as, and root, may use it. It is URL where there is no socket: on Windows and
// for a server from the environment.
func (s *Server) SocketURL() string {
	if s.home == nil || s.home.socketDir() == "" {
		return s.url
	}
	return "postgres:///postgres?user=postgres&host=" + url.QueryEscape(s.home.socketDir()) + "&port=" + strconv.Itoa(s.port)
}

// Bin returns the directory of the server's binaries, or "" for a server from the environment.
func (s *Server) Bin() string { return s.bin }

// Version returns the server's major version, such as 15.
func (s *Server) Version() int { return s.major }

// Dir returns the directory that holds the server's data, log and lock, or "" for a server from the
// environment.
func (s *Server) Dir() string {
	if s.home == nil {
		return ""
	}
	return s.home.path
}

// PID returns the process id of the postmaster that was started last, or 0 for a server from the
// environment.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.pid()
}

// Done returns a channel that is closed when the postmaster that was started last has ended. For a
// server from the environment it is nil.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	return s.proc.done
}

// Stop ends the server, breaking its clients' connections, and removes its directory if that was
// temporary. When ctx ends first the server is killed. Stopping twice, or stopping a server from the
// environment, does nothing.
func (s *Server) Stop(ctx context.Context) error {
	if s.home == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	how := signalFast
	if s.home.temporary {
		how = signalImmediate // its data goes away, so the checkpoint of a clean shutdown buys nothing
	}
	err := s.proc.end(ctx, how)
	s.home.close()
	if err != nil {
		return fmt.Errorf("devpg: stop Postgres: %w", err)
	}
	return nil
}

// Restart stops the server and starts it again on the same port and data. Mode "fast" ends every session
// and writes a checkpoint; mode "immediate" is a crash, after which the server recovers from its log. A
// server that Kill ended is only started.
func (s *Server) Restart(ctx context.Context, mode string) error {
	how := signalFast
	switch mode {
	case "fast":
	case "immediate":
		how = signalImmediate
	default:
		return fmt.Errorf("devpg: restart mode %q: use \"fast\" or \"immediate\"", mode)
	}
	if s.home == nil {
		return ErrExternal
	}
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("devpg: restart: the server was stopped")
	}
	if err := s.proc.end(ctx, how); err != nil {
		return fmt.Errorf("devpg: restart Postgres: %w", err)
	}
	if err := s.launch(ctx); err != nil {
		return fmt.Errorf("devpg: restart Postgres: %w", err)
	}
	return nil
}

// Kill ends the server the hard way, as the kernel does when memory runs out: no process of it gets to
// say goodbye. It returns when the postmaster is gone. Restart brings the server back.
func (s *Server) Kill() error {
	if s.home == nil {
		return ErrExternal
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.kill()
}

func withDefaultTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, startTimeout)
}
