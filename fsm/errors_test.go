package fsm

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestCleanError: a table, and 100 random cases in 0.1 s.
func TestCleanError(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxErrorText)
	for text, want := range map[string]string{
		"":                           "",
		"plain":                      "plain",
		"a\x00b":                     "a\uFFFDb",
		"a\xffb\xc3":                 "a\uFFFDb\uFFFD",
		long + "y":                   long,
		long[1:] + "é":               long[1:],
		long[2:] + "é":               long[2:] + "é",
		long[3:] + "😀":               long[3:],
		strings.Repeat("\x00", 9000): strings.Repeat("\uFFFD", maxErrorText/3),
	} {
		if got := CleanError(text); got != want {
			t.Errorf("%.20q (%d bytes) became %.20q (%d bytes), want %d bytes", text, len(text), got, len(got), len(want))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		text = strings.Repeat(text, rapid.SampledFrom([]int{1, 1000}).Draw(t, "times"))
		got := CleanError(text)
		if len(got) > maxErrorText || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Fatalf("%d bytes became %d, valid: %v", len(text), len(got), utf8.ValidString(got))
		}
		if utf8.ValidString(text) && !strings.Contains(text, "\x00") && len(text) <= maxErrorText && got != text {
			t.Fatalf("a good text was changed: %q became %q", text, got)
		}
		if CleanError(got) != got {
			t.Fatal("a clean text was changed")
		}
	})
}

func TestInvalidErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	err := error(&InvalidError{Field: "state", Problem: "is bad", Err: cause})
	if !errors.Is(err, ErrInvalid) || !errors.Is(err, cause) || err.Error() != "fsm: state is bad: cause" {
		t.Errorf("got %v", err)
	}
	if err := CheckLimitName("gate", "a:b"); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "gate must not contain ':'") {
		t.Errorf("got %v", err)
	}
	if err := CheckLimitName("gate", ""); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if err := CheckLimitName("gate", "openai"); err != nil {
		t.Error(err)
	}
	if err := CheckKey("key", strings.Repeat("k", 1024)); err != nil {
		t.Error(err)
	}
	if err := CheckName("name", strings.Repeat("k", 255)); err != nil {
		t.Error(err)
	}
}
