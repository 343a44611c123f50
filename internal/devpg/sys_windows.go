package devpg

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"unsafe"

	"golang.org/x/sys/windows"
)

type stopSignal int

const (
	signalFast stopSignal = iota
	signalImmediate
)

func exe(name string) string { return name + ".exe" }

// account is always nil on Windows. Postgres refuses to run with an administrator's rights there; we do not
// drop them, so the caller must not have them.
type account struct{}

func (a *account) String() string            { return "current user" }
func serverAccount(string) (*account, error) { return nil, nil }
func (a *account) apply(*exec.Cmd) error     { return nil }
func (a *account) give(*os.File) error       { return nil }
func (a *account) own(string) error          { return nil }
func (a *account) reaches(string) bool       { return true }
func ours(string) error                      { return nil }
func killTree(p *os.Process) error           { return p.Kill() }

// sendSignal kills, as Windows has no signals. The server recovers from its log at the next start.
func sendSignal(p *os.Process, _ stopSignal) error { return p.Kill() }

// lockFile opens the file for us alone: while we have it open nobody else can.
func lockFile(name string) (*os.File, error) {
	path, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return nil, err
	}
	h, err := windows.CreateFile(path, windows.GENERIC_READ|windows.GENERIC_WRITE, windows.FILE_SHARE_DELETE, nil, windows.OPEN_ALWAYS, windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err == windows.ERROR_SHARING_VIOLATION {
		return nil, errLocked
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Clean(name), Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}

// job kills every process in it when its last handle is closed, that is when we end.
var job = sync.OnceValues(func() (windows.Handle, error) {
	h, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, err
	}
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(h, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	return h, err
})

// afterStart puts the server into the job.
func afterStart(cmd *exec.Cmd) error {
	h, err := job()
	if err != nil {
		return fmt.Errorf("make a job object: %w", err)
	}
	p, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(cmd.Process.Pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(p)
	return windows.AssignProcessToJobObject(h, p)
}

// runsServer tells whether pid is a running process; after a start of the machine it may be another one.
func runsServer(pid int, _ string) bool {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return false
	}
	defer windows.CloseHandle(h)
	var code uint32
	const stillActive = 259
	return windows.GetExitCodeProcess(h, &code) == nil && code == stillActive
}

// janitor is not needed: the job object ends the server, and the next start sweeps directories.
type janitor struct{}

func (h *home) startJanitor() error { return nil }
func (h *home) tellJanitor(int)     {}
func (j *janitor) dismiss()         {}
