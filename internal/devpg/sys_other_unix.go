//go:build !windows && !linux

package devpg

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent does nothing where the kernel offers nothing: the janitor ends the server then.
func dieWithParent(*syscall.SysProcAttr) {}

// runsServer tells whether pid is a postmaster on the data directory, by its command line.
func runsServer(pid int, data string) bool {
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), data)
}

// killTree kills the postmaster; its children notice and end by themselves.
func killTree(p *os.Process) error { return p.Kill() }
