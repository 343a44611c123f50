package devpg_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/internal/devpg"
)

// exec runs statements on a connection of their own.
func exec(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
}

func queryString(t *testing.T, url, query string) (s string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), query).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func start(t *testing.T, o devpg.Options) *devpg.Server {
	t.Helper()
	o.Private = true
	s, err := devpg.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stop(t *testing.T, s *devpg.Server) {
	t.Helper()
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestTemporaryServer(t *testing.T) {
	s := start(t, devpg.Options{Settings: map[string]string{"work_mem": "5MB"}})
	if got := queryString(t, s.URL(), "show work_mem"); got != "5MB" {
		t.Errorf("work_mem is %s, want 5MB", got)
	}
	if got := queryString(t, s.URL(), "show fsync"); got != "off" {
		t.Errorf("fsync is %s, want off", got)
	}
	if got := queryString(t, s.URL(), "select (current_setting('server_version_num')::int / 10000)::text"); got != strconv.Itoa(s.Version()) {
		t.Errorf("the server is version %s, Version says %d", got, s.Version())
	}
	if runtime.GOOS != "windows" {
		if got := queryString(t, s.SocketURL(), "select (inet_server_addr() is null)::text"); got != "true" {
			t.Error("SocketURL leads to TCP")
		}
	}
	stop(t, s)
	stop(t, s)
	if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary directory %s is still there (%v)", s.Dir(), err)
	}
}

func TestServerKeepsData(t *testing.T) {
	// Longer than what fits into the name of a socket.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 25))
	s := start(t, devpg.Options{Dir: dir, Durable: true})
	if got := queryString(t, s.URL(), "show synchronous_commit"); got != "on" {
		t.Errorf("synchronous_commit is %s in a durable server", got)
	}
	exec(t, s.URL(), "create table kept (id int)")
	if _, err := devpg.Start(t.Context(), devpg.Options{Dir: dir, Private: true}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("a second start on the same directory says %v, want an error that names process %d", err, os.Getpid())
	}
	stop(t, s)
	s = start(t, devpg.Options{Dir: dir})
	defer stop(t, s)
	if got := queryString(t, s.URL(), "select count(*)::text from kept"); got != "0" {
		t.Errorf("kept has %s rows", got)
	}
}

func TestRestartAndKill(t *testing.T) {
	s := devpg.ServerFor(t, devpg.Options{})
	url := s.URL()
	exec(t, url, "create table t (what text)")
	for _, mode := range []string{"fast", "immediate", "kill"} {
		exec(t, url, "insert into t values ('"+mode+"')")
		pid := s.PID()
		done := s.Done()
		if mode == "kill" {
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			if _, err := pgx.Connect(t.Context(), url); err == nil {
				t.Error("a killed server accepts connections")
			}
			mode = "fast"
		}
		if err := s.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		<-done
		if s.PID() == pid {
			t.Errorf("the postmaster is still process %d", pid)
		}
	}
	if s.URL() != url {
		t.Errorf("the URL changed from %s to %s", url, s.URL())
	}
	if got := queryString(t, url, "select string_agg(what, ' ') from t"); got != "fast immediate kill" {
		t.Errorf("the rows are %q", got)
	}
	if err := s.Restart(t.Context(), "slow"); err == nil {
		t.Error("an unknown mode is accepted")
	}
}

func TestStalePidFile(t *testing.T) {
	dir := t.TempDir()
	s := start(t, devpg.Options{Dir: dir})
	stop(t, s)
	// A process that lives and is no server of ours: the pid was reused.
	stale := strconv.Itoa(os.Getpid()) + "\n" + filepath.Join(s.Dir(), "data") + "\n1\n5432\n\n127.0.0.1\n  1 1\nready   \n"
	if err := os.WriteFile(filepath.Join(s.Dir(), "data", "postmaster.pid"), []byte(stale), 0o644); err != nil {
		t.Fatal(err)
	}
	s = start(t, devpg.Options{Dir: dir})
	defer stop(t, s)
	exec(t, s.URL(), "select 1")
}

// Data below a directory that the server's user cannot enter go elsewhere, and are found again there.
func TestDirectoryOutOfReach(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(closed, "data")
	s := start(t, devpg.Options{Dir: dir})
	used := s.Dir()
	if os.Geteuid() == 0 {
		t.Cleanup(func() { _ = os.RemoveAll(used) })
	}
	if moved := used != dir; moved != (os.Geteuid() == 0) {
		t.Errorf("asked for %s, got %s", dir, used)
	}
	exec(t, s.URL(), "create table kept (id int)")
	stop(t, s)
	s = start(t, devpg.Options{Dir: dir})
	defer stop(t, s)
	if s.Dir() != used {
		t.Errorf("used %s first and %s then", used, s.Dir())
	}
	exec(t, s.URL(), "select * from kept")
}

func TestServerFromTheEnvironment(t *testing.T) {
	s := devpg.ServerFor(t, devpg.Options{})
	t.Setenv("GENDURABLE_DATABASE_URL", s.URL())
	e, err := devpg.Start(t.Context(), devpg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if e.URL() != s.URL() || e.Version() != s.Version() || e.Dir() != "" {
		t.Errorf("got %s version %d in %q", e.URL(), e.Version(), e.Dir())
	}
	if err := e.Restart(t.Context(), "fast"); !errors.Is(err, devpg.ErrExternal) {
		t.Errorf("Restart says %v", err)
	}
	if err := e.Kill(); !errors.Is(err, devpg.ErrExternal) {
		t.Errorf("Kill says %v", err)
	}
	stop(t, e)
	exec(t, s.URL(), "select 1")
	u, _ := url.Parse(s.URL())
	u.Host = "127.0.0.1:1"
	t.Setenv("GENDURABLE_DATABASE_URL", u.String())
	if _, err := devpg.Start(t.Context(), devpg.Options{}); err == nil || !strings.Contains(err.Error(), "GENDURABLE_DATABASE_URL") {
		t.Errorf("a dead server in the environment gives %v", err)
	}
}

func TestBadSettingShowsTheLog(t *testing.T) {
	var log strings.Builder
	_, err := devpg.Start(t.Context(), devpg.Options{Private: true, Log: &log, Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("the error is %v", err)
	}
	if !strings.Contains(log.String(), "no_such_setting") {
		t.Errorf("the log got %q", log.String())
	}
}

func TestExplicitBinaries(t *testing.T) {
	s := devpg.ServerFor(t, devpg.Options{})
	o := devpg.ServerFor(t, devpg.Options{Bin: s.Bin(), MinVersion: s.Version()})
	if o.Bin() != s.Bin() {
		t.Errorf("asked for %s, got %s", s.Bin(), o.Bin())
	}
	for _, o := range []devpg.Options{
		{Bin: t.TempDir()},
		{Bin: s.Bin(), MinVersion: s.Version() + 1},
	} {
		o.Private = true
		if _, err := devpg.Start(t.Context(), o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
