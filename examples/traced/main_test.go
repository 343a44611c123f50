package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/gendurable/gendurable/internal/devpg"
)

// TestTraced reads the trace of one checkout from its insert through the signal and the children to its end, and holds the
// guide's picture of it against it.
func TestTraced(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), devpg.Database(t), &out); err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(guide), "```text\n"+out.String()+"```\n") {
		t.Errorf("docs/telemetry.md does not show this output:\n%s", out.String())
	}
}
