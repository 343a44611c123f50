package workload

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/gendurable/gendurable/bench/lab"
	"github.com/gendurable/gendurable/bench/system"
)

// ChildFlag, as the first argument, makes the benchmark's own program a process of one system, which a trial runs beside
// itself. A JSON childTask follows.
const ChildFlag = "-child"

type childTask struct {
	Kind      string // "node" or "memory"
	URL       string
	Contender string
	Node      string
	Slots     int
}

// Child does what the arguments say. The process ends when its standard input does.
func Child(ctx context.Context, arg string, log *slog.Logger) error {
	var task childTask
	if err := json.Unmarshal([]byte(arg), &task); err != nil {
		return err
	}
	db, err := lab.Attach(task.URL)
	if err != nil {
		return err
	}
	for _, c := range system.All() {
		if c.Name() != task.Contender {
			continue
		}
		s := c.New(system.Conf{DB: db, Slots: task.Slots, Node: task.Node, Log: log})
		switch task.Kind {
		case "node":
			err = node(ctx, s)
		case "memory":
			err = weigh(ctx, s, task.Slots)
		default:
			err = fmt.Errorf("unknown task %q", task.Kind)
		}
		return errors.Join(err, s.Stop(ctx))
	}
	return fmt.Errorf("unknown contender %q", task.Contender)
}

// node runs the workers until standard input ends.
func node(ctx context.Context, s system.System) error {
	if err := errors.Join(s.Setup(ctx), s.Start(ctx)); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// weight is what a process of one system takes, in bytes: what Go has in use for heap and stacks beyond what the
// program took before.
type weight struct{ Idle, Busy int64 }

// weigh prints the weight of the idle system, and with so many steps running.
func weigh(ctx context.Context, s system.System, steps int) error {
	empty := inUse()
	if err := errors.Join(s.Setup(ctx), s.Start(ctx)); err != nil {
		return err
	}
	if err := pause(ctx, 500*time.Millisecond); err != nil {
		return err
	}
	w := weight{Idle: inUse() - empty}
	release, err := s.(system.Occupier).Occupy(ctx, steps)
	if err != nil {
		return fmt.Errorf("run %d steps: %w", steps, err)
	}
	w.Busy = inUse() - empty
	release()
	return json.NewEncoder(os.Stdout).Encode(w)
}

// inUse is what is reachable, and stacks.
func inUse() int64 {
	debug.FreeOSMemory()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// process is a running child.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// spawn starts this program as a child.
func spawn(ctx context.Context, task childTask) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	arg, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, ChildFlag, string(arg))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{cmd: cmd, in: in, out: bufio.NewScanner(out)}, nil
}

// line reads one line of the child's.
func (p *process) line() (string, error) {
	if !p.out.Scan() {
		return "", errors.Join(errors.New("the child process ended early"), p.out.Err())
	}
	return p.out.Text(), nil
}

// end closes the child's standard input and waits for its end.
func (p *process) end() error {
	_ = p.in.Close()
	return p.cmd.Wait()
}
