package main

import (
	"bytes"
	"testing"

	"github.com/gendurable/gendurable/internal/devpg"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), devpg.Database(t), &out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "3 bookings, 400 left\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
