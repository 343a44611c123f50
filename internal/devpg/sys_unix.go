//go:build !windows

package devpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

type stopSignal = syscall.Signal

const (
	signalFast      = syscall.SIGINT
	signalImmediate = syscall.SIGQUIT
)

func exe(name string) string { return name }

// account is the unprivileged user as whom root runs the server. The nil account is ourselves.
type account struct {
	name     string
	uid, gid int
}

func (a *account) String() string { return a.name }

// serverAccount chooses whom to run the server as: ourselves unless we are root, else the owner of the
// data if there is some, else postgres, else nobody.
func serverAccount(data string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if st, err := os.Stat(data); data != "" && err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 {
			return &account{name: "#" + strconv.Itoa(int(sys.Uid)), uid: int(sys.Uid), gid: int(sys.Gid)}, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil && uid != 0 {
			return &account{name: name, uid: uid, gid: gid}, nil
		}
	}
	return nil, errors.New("root cannot run Postgres, and there is no user postgres or nobody; create one with: useradd --system postgres")
}

// apply makes cmd run as the account, in a process group of its own so that a Ctrl-C at the terminal
// reaches us only, and die with us where the system can arrange that.
func (a *account) apply(cmd *exec.Cmd) error {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	dieWithParent(attr)
	cmd.SysProcAttr = attr
	return nil
}

// own hands a directory to the account and shuts out everybody else.
func (a *account) own(dir string) error {
	if a != nil {
		if err := os.Chown(dir, a.uid, a.gid); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// give hands a file to the account.
func (a *account) give(f *os.File) error {
	if a == nil {
		return nil
	}
	return f.Chown(a.uid, a.gid)
}

// reaches tells whether the account may enter dir and all directories above it.
func (a *account) reaches(dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	if a == nil {
		return true
	}
	for {
		st, err := os.Stat(real)
		if err != nil {
			return false
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok {
			return false
		}
		bit := os.FileMode(0o001)
		switch {
		case int(sys.Uid) == a.uid:
			bit = 0o100
		case int(sys.Gid) == a.gid:
			bit = 0o010
		}
		if st.Mode().Perm()&bit == 0 {
			return false
		}
		up := filepath.Dir(real)
		if up == real {
			return true
		}
		real = up
	}
}

// ours fails for a directory that another user may have prepared for us.
func ours(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || !st.IsDir() || int(sys.Uid) != os.Getuid() || st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only we can write to; remove it", dir)
	}
	return nil
}

// lockFile takes an exclusive lock that ends with the file or with this process. It returns errLocked
// when somebody else has it.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errLocked
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func sendSignal(p *os.Process, how stopSignal) error { return p.Signal(how) }

func afterStart(*exec.Cmd) error { return nil }

// janitorScript waits for the end of its input, which our end of the pipe brings about in whatever way we
// end. It learns the postmaster's pid from its input, as the file in the data directory may be that of a
// successor by then. Its argument is the directory to remove, or empty.
const janitorScript = `
pid=
while read -r word arg; do
  case $word in
    pid) pid=$arg ;;
    done) exit 0 ;;
  esac
done
if [ -n "$pid" ]; then
  kill -QUIT "$pid"
  tries=0
  while kill -0 "$pid" && [ -z "$1" -o -e "$1/data/postmaster.pid" ] && [ $tries -lt 100 ]; do
    sleep 0.1
    tries=$((tries+1))
  done
fi
[ -z "$1" ] || rm -rf "$1"
`

// janitor is a small process that outlives us: it ends a server that has lost us, where the kernel does
// not do that, and removes a temporary directory.
type janitor struct {
	cmd *exec.Cmd
	in  *os.File
}

func (h *home) startJanitor() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	dir := ""
	if h.temporary {
		dir = h.path
	}
	cmd := exec.Command("/bin/sh", "-c", janitorScript, "devpg-janitor", dir)
	cmd.Dir = "/"
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return fmt.Errorf("start the process that cleans up after us: %w", err)
	}
	h.janitor = &janitor{cmd: cmd, in: w}
	return nil
}

func (h *home) tellJanitor(pid int) {
	// A janitor that is gone leaves the work to the kernel and to the next start.
	_, _ = fmt.Fprintf(h.janitor.in, "pid %d\n", pid)
}

func (j *janitor) dismiss() {
	if j == nil {
		return
	}
	_, _ = fmt.Fprintln(j.in, "done")
	j.in.Close()
	_ = j.cmd.Wait()
}
