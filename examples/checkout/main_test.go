package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/gendurable/gendurable/internal/devpg"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	// The first order's payment must find it waiting still, on a busy machine too.
	if err := run(t.Context(), devpg.Database(t), 10*time.Second, &out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "order 42 is paid with 100\nan order failed: payment never came\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
