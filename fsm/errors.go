package fsm

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"
)

// Causes of a step's context. A step whose context ends asks context.Cause why.
var (
	// ErrLeaseLost: the engine no longer owns the instance; whatever the step returns is dropped. A step that
	// returns the context's error is spared the error handler.
	ErrLeaseLost = errors.New("fsm: the lease of this instance was lost; another worker runs it or will run it")
	// ErrCancelled: somebody cancelled the instance; whatever the step returns, it becomes failed.
	ErrCancelled = errors.New("fsm: the instance was cancelled")
	// ErrDraining: the engine is stopping and its DrainTimeout has passed. An outcome returned soon still
	// counts. A step that returns the context's error was interrupted, it did not fail: its error handler is not
	// called, and the step runs again elsewhere from the state it started with, no attempt counted.
	ErrDraining = errors.New("fsm: the engine is stopping")
	// ErrStepTimeout: the step ran longer than its StepTimeout. It is also the error that the machine's error
	// handler gets then, whatever the step returned.
	ErrStepTimeout = errors.New("fsm: the step timed out")
)

// ErrInvalid is what errors.Is finds in every refusal of a bad value: an *InvalidError.
var ErrInvalid = errors.New("fsm: invalid value")

// InvalidError refuses a value. It matches ErrInvalid.
type InvalidError struct {
	Field   string // what was refused, such as "correlation key"
	Problem string // what is wrong, with the limit
	Err     error  // the cause; may be nil
}

func (e *InvalidError) Error() string {
	if e.Err != nil {
		return "fsm: " + e.Field + " " + e.Problem + ": " + e.Err.Error()
	}
	return "fsm: " + e.Field + " " + e.Problem
}

// Is matches ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// PanicError is a panic of user code as the error that a machine's error handler gets.
type PanicError struct {
	Value any    // what the code panicked with
	Stack []byte // of the panicking goroutine, for a log; the text of the error leaves it out
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// capture turns a panic of the surrounding function into its error; to be deferred directly.
func capture(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Value: v, Stack: debug.Stack()}
	}
}

// maxErrorText is the longest text of an error that is stored, in bytes.
const maxErrorText = 8 << 10

// cleanText is the text of an error as it may be stored. An Error method that panics is survived.
func cleanText(err error) string { return CleanError(errorText(err)) }

func errorText(err error) (text string) {
	defer func() {
		if v := recover(); v != nil {
			text = fmt.Sprintf("%T, whose Error method panicked: %v", err, v)
		}
	}()
	return err.Error()
}

// CleanError cleans the text of an error, or a reason, so that it may be stored: NUL and invalid UTF-8 are
// replaced by U+FFFD, and it is cut to 8 KiB at the boundary of a character. It never refuses one.
func CleanError(text string) string {
	// The first cut bounds the work; the replacements may lengthen the text again.
	text = cut(text, maxErrorText)
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	if strings.IndexByte(text, 0) >= 0 {
		text = strings.ReplaceAll(text, "\x00", "\uFFFD")
	}
	return cut(text, maxErrorText)
}

// cut returns at most max bytes of s, not ending within a character of valid UTF-8.
func cut(s string, max int) string {
	if len(s) <= max {
		return s
	}
	end := max
	for end > max-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Cancel wraps an error so that a job that returns it fails at once instead of being retried.
func Cancel(err error) error {
	if err == nil {
		err = errors.New("cancelled by the job")
	}
	return &cancelError{err}
}

type cancelError struct{ err error }

func (e *cancelError) Error() string { return e.err.Error() }
func (e *cancelError) Unwrap() error { return e.err }

// Snooze is the error by which a job asks to run again after d, without counting as an attempt.
func Snooze(d time.Duration) error { return &snoozeError{d} }

type snoozeError struct{ delay time.Duration }

func (e *snoozeError) Error() string { return "snoozed for " + e.delay.String() }

// interrupted tells code that gave up because its context was cancelled, by an engine that drains or lost the lease
// or is gone itself, from code that failed. A cancelled instance is to end, so that nothing runs again.
func interrupted(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, ErrCancelled) || errors.Is(err, ErrStepTimeout) {
		return false
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, cause)
}
