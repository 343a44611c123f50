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
	want := `30 letters sent, in no less than a second: true
30 admitted
`
	if got := out.String(); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
