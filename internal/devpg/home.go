package devpg

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	// lockPatience is how long Start waits for a directory's owner to let go of it: long enough for a
	// process that is being killed, short enough not to look like a hang.
	lockPatience = 2 * time.Second

	// predecessorPatience is how long a server without an owner gets to end by itself.
	predecessorPatience = 5 * time.Second

	// maxSocketPath keeps the socket's full name below the 104 bytes that macOS allows.
	maxSocketPath = 80

	// maxLog is the size in bytes from which a kept log starts anew.
	maxLog = 16 << 20
)

var errLocked = errors.New("the lock is held by somebody else")

// home is the directory of one server: data/, the socket directory, postgres.log and lock.
type home struct {
	path      string
	temporary bool
	account   *account // whom the server runs as; nil for ourselves
	socket    string   // "" where there are no Unix sockets

	// lock is held as long as the server may run. The kernel lets go of it when our process dies.
	lock    *os.File
	janitor *janitor
}

// openHome creates or opens the directory of a server and locks it.
func openHome(dir string) (*home, error) {
	if dir == "" {
		return openTemporary()
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	acc, err := serverAccount(filepath.Join(abs, "data"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return nil, err
	}
	if !acc.reaches(abs) {
		base, err := baseDir(acc)
		if err != nil {
			return nil, err
		}
		wanted, sum := abs, sha256.Sum256([]byte(abs))
		abs = filepath.Join(base, "kept-"+hex.EncodeToString(sum[:8]))
		if acc, err = serverAccount(filepath.Join(abs, "data")); err != nil {
			return nil, err
		}
		return openStandIn(base, abs, wanted, acc)
	}
	h := &home{path: abs, account: acc}
	if err := h.takeLock(lockPatience); err != nil {
		return nil, err
	}
	return h, h.prepare()
}

// openStandIn opens a directory that keeps the data of one that the account cannot reach. It goes away
// with the wanted one, see sweep.
func openStandIn(base, path, wanted string, acc *account) (*home, error) {
	guard, err := lockWithin(filepath.Join(base, "lock"), time.Minute)
	if err != nil {
		return nil, err
	}
	defer guard.Close()
	sweep(base)
	if err := os.MkdirAll(path, 0o711); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(path, "wanted"), []byte(wanted), 0o600); err != nil {
		return nil, err
	}
	h := &home{path: path, account: acc}
	if err := h.takeLock(lockPatience); err != nil {
		return nil, err
	}
	return h, h.prepare()
}

// openTemporary makes a directory for a throw-away server, and removes those whose owner died without
// doing so.
func openTemporary() (*home, error) {
	acc, err := serverAccount("")
	if err != nil {
		return nil, err
	}
	base, err := baseDir(acc)
	if err != nil {
		return nil, err
	}
	// Nobody may sweep a directory between its creation and the taking of its lock.
	guard, err := lockWithin(filepath.Join(base, "lock"), time.Minute)
	if err != nil {
		return nil, err
	}
	defer guard.Close()
	sweep(base)
	path, err := os.MkdirTemp(base, "tmp-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o711); err != nil {
		return nil, err
	}
	h := &home{path: path, temporary: true, account: acc}
	if err := h.takeLock(lockPatience); err != nil {
		return nil, err
	}
	return h, h.prepare()
}

// sweep removes the temporary directories that lost their owner, and the stand-ins for directories that
// are gone. The caller holds the lock of base.
func sweep(base string) {
	dirs, _ := filepath.Glob(filepath.Join(base, "tmp-*"))
	standIns, _ := filepath.Glob(filepath.Join(base, "kept-*"))
	for _, d := range standIns {
		wanted, err := os.ReadFile(filepath.Join(d, "wanted"))
		if err != nil {
			continue
		}
		if _, err := os.Stat(string(wanted)); errors.Is(err, os.ErrNotExist) {
			dirs = append(dirs, d)
		}
	}
	for _, d := range dirs {
		lock, err := lockFile(filepath.Join(d, "lock"))
		if err != nil {
			continue
		}
		h := &home{path: d, temporary: true, lock: lock}
		if h.postmasterAlive() {
			lock.Close()
			continue
		}
		h.close()
	}
}

// baseDir is where temporary servers live, one directory for each user of the machine.
func baseDir(acc *account) (string, error) {
	var last error
	for _, tmp := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		base := filepath.Join(tmp, "gendurable-pg-"+strconv.Itoa(os.Getuid()))
		if err := os.MkdirAll(base, 0o711); err != nil {
			last = err
			continue
		}
		if err := ours(base); err != nil {
			last = err
			continue
		}
		if acc.reaches(base) {
			return base, nil
		}
		last = fmt.Errorf("user %s cannot reach %s", acc, base)
	}
	return "", fmt.Errorf("find a temporary directory for the server (set TMPDIR to a directory that everybody may enter): %w", last)
}

func (h *home) takeLock(patience time.Duration) error {
	name := filepath.Join(h.path, "lock")
	lock, err := lockWithin(name, patience)
	if errors.Is(err, errLocked) {
		owner, _ := os.ReadFile(name)
		return fmt.Errorf("process %s is using %s; stop it, or choose another directory", strings.TrimSpace(string(owner)), h.path)
	}
	if err != nil {
		return err
	}
	h.lock = lock
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func lockWithin(name string, patience time.Duration) (*os.File, error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(pollInterval) {
		f, err := lockFile(name)
		if !errors.Is(err, errLocked) || time.Now().After(deadline) {
			return f, err
		}
	}
}

// prepare makes the socket directory and trims the log. It closes h when it fails.
func (h *home) prepare() (err error) {
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if runtime.GOOS != "windows" {
		h.socket = filepath.Join(h.path, "run")
		if len(h.socket) > maxSocketPath {
			base, err := baseDir(h.account)
			if err != nil {
				return err
			}
			sum := sha256.Sum256([]byte(h.path))
			h.socket = filepath.Join(base, "run-"+hex.EncodeToString(sum[:8]))
		}
		if err := h.mkdirOwned(h.socket); err != nil {
			return err
		}
	}
	if st, err := os.Stat(h.logPath()); err == nil && st.Size() > maxLog {
		return os.Truncate(h.logPath(), 0)
	}
	return nil
}

// mkdirOwned makes a directory that only the server's user may enter.
func (h *home) mkdirOwned(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return h.account.own(dir)
}

// close tells the janitor that it is not needed, removes a temporary directory and releases the lock.
// No server may run in h any more.
func (h *home) close() {
	h.janitor.dismiss()
	if h.temporary {
		_ = os.RemoveAll(h.path)
	}
	if h.socket != "" && !strings.HasPrefix(h.socket, h.path) {
		_ = os.RemoveAll(h.socket)
	}
	if h.lock != nil {
		h.lock.Close()
	}
}

func (h *home) data() string      { return filepath.Join(h.path, "data") }
func (h *home) logPath() string   { return filepath.Join(h.path, "postgres.log") }
func (h *home) socketDir() string { return h.socket }

// major returns the version that the data was made by, or 0 when there is no data yet.
func (h *home) major() (int, error) {
	b, err := os.ReadFile(filepath.Join(h.data(), "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the data (was it made by another user?): %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func (h *home) logSince(offset int64) string {
	b, err := os.ReadFile(h.logPath())
	if err != nil || int64(len(b)) < offset {
		return ""
	}
	b = b[offset:]
	return strings.TrimSpace(string(b[max(0, len(b)-4096):]))
}

// pidFile is what a postmaster wrote into its data directory.
type pidFile struct {
	pid   int
	ready bool
}

func (h *home) pidFile() pidFile {
	b, err := os.ReadFile(filepath.Join(h.data(), "postmaster.pid"))
	if err != nil {
		return pidFile{}
	}
	lines := strings.Split(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil {
		return pidFile{}
	}
	// The eighth line is the state of the server.
	return pidFile{pid: pid, ready: len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready"}
}

func (h *home) postmasterAlive() bool {
	f := h.pidFile()
	return f.pid > 0 && runsServer(f.pid, h.data())
}

// waitForPredecessor makes sure that no server runs on the data, and removes the pid file of one that is
// gone. The lock is ours, so a server that runs here has lost its owner and is about to end; if it does
// not, it is told to.
func (h *home) waitForPredecessor(ctx context.Context) error {
	nudge := time.Now().Add(predecessorPatience)
	for h.postmasterAlive() {
		if time.Now().After(nudge) {
			if p, err := os.FindProcess(h.pidFile().pid); err == nil {
				_ = sendSignal(p, signalImmediate)
			}
			nudge = time.Now().Add(predecessorPatience)
		}
		if err := pause(ctx, pollInterval); err != nil {
			return fmt.Errorf("a server (process %d) that lost its owner does not end; kill it: %w", h.pidFile().pid, err)
		}
	}
	err := os.Remove(filepath.Join(h.data(), "postmaster.pid"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
