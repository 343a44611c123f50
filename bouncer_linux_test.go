package gendurable_test

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// bouncerAttributes let pgbouncer end with this process, and run as nobody where this process is root, which it refuses.
func bouncerAttributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		return attr
	}
	if nobody, err := user.Lookup("nobody"); err == nil {
		uid, _ := strconv.ParseUint(nobody.Uid, 10, 32)
		gid, _ := strconv.ParseUint(nobody.Gid, 10, 32)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr
}
