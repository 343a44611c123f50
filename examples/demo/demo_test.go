package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary be its own worker process, as the demo's binary is.
func TestMain(m *testing.M) {
	if number := os.Getenv(envWorker); number != "" {
		exit(runWorker(number))
	}
	os.Exit(m.Run())
}

func TestDemoProvesItself(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := runDemo(t.Context(), options{orders: 300, dir: t.TempDir(), paymentTimeout: 15 * time.Second, out: &out})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"kill -9", "2 kills with SIGKILL", "every order reached the right end"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo did not print %q:\n%s", want, out.String())
		}
	}
}
