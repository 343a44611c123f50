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
	want := `pipeline: "8 words, 4 of them different"
requeued: "8 words, 4 of them different"
queue inline: claimed 1 times, 3 steps went on without a claim
queue requeued: claimed 4 times, 0 steps went on without a claim
`
	if got := out.String(); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
