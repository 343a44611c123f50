//go:build !windows

package devpg_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gendurable/gendurable/internal/devpg"
)

// asChild makes the test binary something else than a test: what runs in a process that is going to be
// killed, or as another user.
const asChild = "DEVPG_TEST_CHILD"

func TestMain(m *testing.M) {
	switch mode, dir, _ := strings.Cut(os.Getenv(asChild), ":"); mode {
	case "serve":
		childServe(dir)
	default:
		os.Exit(m.Run())
	}
}

// childServe starts a server, says where, and waits for its end.
func childServe(dir string) {
	s, err := devpg.Start(context.Background(), devpg.Options{Dir: dir, Private: true})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println(s.URL(), s.PID(), s.Dir())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := s.Stop(context.Background()); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

// TestChildDatabase takes a database. As a child it then waits for the end of its input or for being
// killed.
func TestChildDatabase(t *testing.T) {
	pool := devpg.Database(t, createTable)
	if os.Getenv(asChild) == "" {
		return
	}
	fmt.Println("database", queryString(t, pool.Config().ConnString(), "select current_database()"))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

type child struct {
	cmd   *osexec.Cmd
	in    io.WriteCloser
	words []string // of the line that it wrote when it was ready
}

func spawn(t *testing.T, cmd *osexec.Cmd, mode string) *child {
	t.Helper()
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, asChild+"="+mode)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, in: in}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error") {
		t.Fatalf("the child says %q (%v)", line, err)
	}
	c.words = strings.Fields(line)
	return c
}

func (c *child) kill(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait()
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// gone tells whether a process has ended, be it that nobody has reaped it yet.
func gone(pid string) bool {
	out, _ := osexec.Command("ps", "-o", "stat=", "-p", pid).Output()
	state := strings.TrimSpace(string(out))
	return state == "" || strings.HasPrefix(state, "Z")
}

func TestServerEndsWithItsKilledOwner(t *testing.T) {
	dir := t.TempDir()
	c := spawn(t, osexec.Command(os.Args[0]), "serve:"+dir)
	exec(t, c.words[0], "create table kept as select 42 as id")
	c.kill(t)
	eventually(t, "the postmaster is gone", func() bool { return gone(c.words[1]) })
	s := start(t, devpg.Options{Dir: dir})
	defer stop(t, s)
	if got := queryString(t, s.URL(), "select id::text from kept"); got != "42" {
		t.Errorf("kept %s, want 42", got)
	}
}

func TestStartWaitsForTheServerOfAKilledOwner(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		c := spawn(t, osexec.Command(os.Args[0]), "serve:"+dir)
		exec(t, c.words[0], fmt.Sprintf("create table t%d (id int)", round))
		c.kill(t)
	}
	s := start(t, devpg.Options{Dir: dir})
	defer stop(t, s)
	if got := queryString(t, s.URL(), "select count(*)::text from pg_class where relname ~ '^t[0-2]$'"); got != "3" {
		t.Errorf("%s tables are there, want 3", got)
	}
}

func TestLiveOwnerIsNamed(t *testing.T) {
	dir := t.TempDir()
	c := spawn(t, osexec.Command(os.Args[0]), "serve:"+dir)
	_, err := devpg.Start(t.Context(), devpg.Options{Dir: dir, Private: true})
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(c.cmd.Process.Pid)) {
		t.Errorf("the error %v does not name process %d", err, c.cmd.Process.Pid)
	}
}

func TestTemporaryDirectoryGoesWithItsKilledOwner(t *testing.T) {
	c := spawn(t, osexec.Command(os.Args[0]), "serve:")
	dir := c.words[2]
	c.kill(t)
	eventually(t, "the postmaster is gone", func() bool { return gone(c.words[1]) })
	eventually(t, "the directory is gone", func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	})
}

// Under root the other tests cover the change of user; this one covers an ordinary user.
func TestServerOfAnOrdinaryUser(t *testing.T) {
	cmd := osexec.Command(os.Args[0])
	if os.Geteuid() == 0 {
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		gid, _ := strconv.Atoi(nobody.Gid)
		cmd = osexec.Command(readableCopy(t, os.Args[0]))
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "HOME=/nonexistent")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	c := spawn(t, cmd, "serve:")
	exec(t, c.words[0], "create table t (id int)")
	c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.words[2]); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", c.words[2], err)
	}
}

// readableCopy copies a program to where every user can run it; go test builds it in a private directory.
func readableCopy(t *testing.T, program string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "devpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	name := filepath.Join(dir, "devpg.test")
	to, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestDatabasesOfKilledProcessesAreSweptAway(t *testing.T) {
	s := devpg.ServerFor(t, devpg.Options{})
	run := func() *child {
		cmd := osexec.Command(os.Args[0], "-test.run=^TestChildDatabase$")
		cmd.Env = append(os.Environ(), "GENDURABLE_DATABASE_URL="+s.URL())
		return spawn(t, cmd, "database")
	}
	exists := func(name string) bool {
		return queryString(t, s.URL(), "select count(*)::text from pg_database where datname = '"+name+"'") == "1"
	}
	dead, alive := run(), run()
	dead.kill(t)
	eventually(t, "the server has noticed", func() bool {
		return queryString(t, s.URL(), "select count(*)::text from pg_locks where locktype = 'advisory' and granted") == "1"
	})
	last := run()
	if exists(dead.words[1]) {
		t.Error("the database of the killed process is still there")
	}
	if !exists(alive.words[1]) || !exists(last.words[1]) {
		t.Error("the database of a living process is gone")
	}
	last.in.Close()
	if err := last.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if exists(last.words[1]) {
		t.Error("the database of a process that ended is still there")
	}
}
