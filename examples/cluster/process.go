package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// process is a node's place: its name, and the process that is there.
type process struct {
	number int
	cmd    *exec.Cmd
	stdin  io.Closer
	done   chan struct{} // closed when it has ended

	mu      sync.Mutex
	address string
	steps   int64 // that it has run, as it says
}

// start starts this very program again as a node.
func (o options) start(number int, url string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{number: number, cmd: exec.Command(self), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", envNode, number), envURL+"="+url,
		fmt.Sprintf("%s=%d", envLanes, o.lanes), envTTL+"="+o.ttl.String())
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start node %d: %w", number, err)
	}
	go p.listen(stdout)
	return p, nil
}

// listen takes what the node says until it ends.
func (p *process) listen(stdout io.Reader) {
	defer close(p.done)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		p.mu.Lock()
		if p.address == "" {
			p.address = lines.Text()
		} else if n, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
			p.steps = n
		}
		p.mu.Unlock()
	}
	_ = p.cmd.Wait()
}

func (p *process) state() (address string, steps int64, alive bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return p.address, p.steps, false
	default:
		return p.address, p.steps, true
	}
}

// kill ends the process with SIGKILL, which it cannot notice.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// terminate asks the process to drain and end.
func (p *process) terminate() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.kill()
	}
}
