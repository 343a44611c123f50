package main

import (
	"bytes"
	"context"
	"log"
	"os"
	"testing"

	"github.com/gendurable/gendurable/internal/devpg"
)

// TestMain lets the test binary be the worker process.
func TestMain(m *testing.M) {
	if database := os.Getenv(envDatabase); database != "" {
		if err := workUntilAlone(context.Background(), database); err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(m.Run())
}

func TestBoth(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := both(t.Context(), devpg.Database(t).Config().ConnString(), &out); err != nil {
		t.Fatal(err)
	}
	want := `a second lamp is refused
lamp, approved by Ada
desk, approved by Ada
tent, approved by Ada
`
	if got := out.String(); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
