package devpg

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has the kernel send the signal of an immediate shutdown when the thread that starts the
// child ends. Go sets it after the change of user, which would clear it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = signalImmediate }

// runsServer tells whether pid is a postmaster on the data directory; they all make it their working
// directory. A process that has ended and was not reaped has none.
func runsServer(pid int, data string) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(data)
	return err == nil && cwd == real
}

// killTree kills a postmaster and its children. The postmaster is held first, so that it neither starts
// another child nor reacts to the death of one.
func killTree(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for _, pid := range childrenOf(p.Pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return p.Kill()
}

func childrenOf(parent int) []int {
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// pid (command) state ppid ...; the command may hold blanks and parentheses.
		_, rest, ok := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
