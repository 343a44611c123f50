package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is a worker process.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}
	err   error // why it ended; readable once done is closed
}

// startWorker starts this very program again as worker number n.
func (c *conductor) startWorker(n int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(),
		fmt.Sprintf("%s=%d", envWorker, n), envURL+"="+c.url, envTimeout+"="+c.paymentTimeout.String())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	p := &process{cmd: cmd, stdin: stdin, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	c.worker = p
	return nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process with SIGKILL, which it cannot notice, and waits until it is gone.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// terminate asks the process to drain and end.
func (p *process) terminate() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the worker: %w", err)
	}
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("the worker did not end cleanly: %w", p.err)
		}
		return nil
	case <-time.After(30 * time.Second):
		p.kill()
		return fmt.Errorf("the worker did not end after SIGTERM")
	}
}
