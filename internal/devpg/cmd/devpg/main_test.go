//go:build !windows

package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// asCommand makes the test binary behave as the command.
const asCommand = "DEVPG_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

func command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "GENDURABLE_DATABASE_URL=")
	cmd.Stderr = os.Stderr
	return cmd
}

func TestRunPassesURLAndExitCode(t *testing.T) {
	cmd := command("run", "--", "sh", "-c", "echo $GENDURABLE_DATABASE_URL; exit 7")
	out, _ := cmd.Output()
	if !strings.HasPrefix(string(out), "postgres://") {
		t.Errorf("the URL is %q", out)
	}
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("the exit code is %d, want 7", code)
	}
	cmd = command("run", "--", "sh", "-c", "kill -9 $$")
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 128+9 {
		t.Errorf("the exit code is %d, want 137", code)
	}
}

// started runs a command and returns it with the first line that it writes.
func started(t *testing.T, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := command(args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

func TestRunPassesSignals(t *testing.T) {
	cmd, _ := started(t, "run", "--", "sh", "-c", `trap "exit 5" TERM; echo ready; while :; do sleep 0.05; done`)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("the exit code is %d, want 5", code)
	}
}

func TestServeEndsOnASignal(t *testing.T) {
	cmd, line := started(t, "serve", "-dir", t.TempDir())
	if !strings.HasPrefix(line, "postgres://") {
		t.Errorf("the URL is %q", line)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("serve ended with %v", err)
	}
}

func TestBadUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"dance"}, {"run"}} {
		if code, err := dispatch(args); code != 2 || err == nil {
			t.Errorf("%v gives %d, %v", args, code, err)
		}
	}
}
