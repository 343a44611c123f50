package fsm_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/gendurable/gendurable/fsm"
)

// The snippets of docs/jobs.md.

type CleanupArgs struct {
	Path string `json:"path"`
}

type CleanupResult struct {
	Freed int64 `json:"freed"`
}

var Cleanup = fsm.NewJob("cleanup", func(ctx context.Context, j *fsm.JobCall[CleanupArgs]) (CleanupResult, error) {
	info, err := os.Stat(j.Args.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return CleanupResult{}, fsm.Cancel(err) // no retry will help
	case err != nil:
		return CleanupResult{}, err // retried
	case time.Since(info.ModTime()) < time.Hour:
		return CleanupResult{}, fsm.Snooze(time.Hour) // still in use: not an attempt
	}
	return CleanupResult{Freed: info.Size()}, os.Remove(j.Args.Path)
}, fsm.MaxAttempts(10), fsm.StepTimeout(time.Minute))

type CountArgs struct {
	Day string `json:"day"`
}

var CountRows = fsm.NewJob("count-rows", func(ctx context.Context, j *fsm.JobCall[CountArgs]) (int, error) {
	return len(j.Args.Day), nil
}, fsm.Queue("reports"), fsm.Backoff(func(attempt int) time.Duration {
	return time.Duration(attempt+1) * 10 * time.Second
}))

type Mail struct {
	To string `json:"to"`
}

var SendMail = fsm.NewJob("send-mail", func(ctx context.Context, j *fsm.JobCall[Mail]) (any, error) {
	err := errors.New("no connection to the mail server")
	if err != nil && j.Last() {
		fmt.Println("giving up on mail to", j.Args.To)
	}
	return nil, err
})

func ExampleNewJob() {
	in := &fsm.Input{Step: fsm.JobStep, State: []byte(`{"path": "/no/such/file"}`)}
	out := fsm.Run(context.Background(), Cleanup.Spec(), in).Encoded
	fmt.Println(out.Kind, out.Error)
	// Output: stop stat /no/such/file: no such file or directory
}

func ExampleJobCall_Last() {
	for _, attempt := range []int{0, 19} {
		in := &fsm.Input{Step: fsm.JobStep, Attempt: attempt, State: []byte(`{"to": "ann@example.org"}`)}
		out := fsm.Run(context.Background(), SendMail.Spec(), in).Encoded
		fmt.Println(out.Kind, out.Delay, out.Error)
	}
	// Output:
	// retry 1s no connection to the mail server
	// giving up on mail to ann@example.org
	// stop 0s no connection to the mail server
}

func ExampleBackoff() {
	for attempt := range 3 {
		fmt.Println(fsm.DefaultBackoff(attempt), fsm.DefaultBackoff(attempt+7))
	}
	// Output:
	// 1s 2m8s
	// 2s 4m16s
	// 4s 5m0s
}
