package gendurable_test

import (
	"os/exec"
	"strings"
	"testing"
)

// The direction of imports, as ARCHITECTURE.md draws it: what each package may import of ours. A trailing
// slash means everything below. A package that is not listed may import the public API only.
var mayImport = map[string][]string{
	"fsm":                 {},
	"limiter":             {},
	"limiter/limitertest": {"limiter"},
	"pg":                  {"limiter"},
	"messages":            {},
	"instance":            {"fsm"},
	"actors":              {"pg", "fsm", "limiter"},
	"actors/scheduler":    {"actors", "pg", "fsm", "limiter", "actors/scheduler/", "internal/stepping"},
	"actors/gateway":      {"actors", "messages"},
	"actors/":             {"actors", "pg", "limiter"},
	"cluster":             {"actors", "messages", "pg", "fsm", "instance"},
	"internal/telemetry":  {"actors", "pg"},
	"internal/stepping":   {"pg", "fsm"},
	"gendurabletest":      {"", "pg", "fsm", "limiter", "internal/stepping"},
	"":                    {"internal/telemetry", "actors", "actors/", "pg", "fsm", "instance", "limiter", "messages", "cluster"},
	"internal/devpg/":     {"internal/devpg"},
	"internal/devpg":      {},
}

var publicAPI = []string{"", "fsm", "limiter", "gendurabletest", "cluster", "messages", "internal/devpg"}

// mayUseProtoactor lists the packages that know the actor library.
var mayUseProtoactor = []string{"", "actors", "actors/", "cluster"}

const (
	module     = "github.com/gendurable/gendurable"
	protoactor = "github.com/asynkron/protoactor-go"
)

func TestImportDirections(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		from := short(fields[0])
		allowed := rule(from)
		for _, imp := range fields[1:] {
			switch {
			case strings.HasPrefix(imp, module):
				seen++
				if to := short(imp); !matches(allowed, to) {
					t.Errorf("%q imports %q, which the direction of imports forbids (see ARCHITECTURE.md)", from, to)
				}
			case strings.HasPrefix(imp, protoactor) && !matches(mayUseProtoactor, from):
				t.Errorf("%q imports the actor library; only actors/, cluster/ and the wiring may", from)
			}
		}
	}
	if seen < 20 {
		t.Fatalf("go list showed only %d imports of our own packages: is the test looking at the module?", seen)
	}
}

// TestFsmIsStandardLibraryOnly keeps machines compilable and testable without anything else.
func TestFsmIsStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", `{{if not .Standard}}{{.ImportPath}}{{end}}`, "./fsm").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if got := strings.TrimSpace(string(out)); got != module+"/fsm" {
		t.Errorf("fsm depends on more than the standard library:\n%s", got)
	}
}

func short(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
}

// rule finds the most special rule for a package.
func rule(pkg string) []string {
	if allowed, ok := mayImport[pkg]; ok {
		return allowed
	}
	for prefix := pkg; ; {
		i := strings.LastIndex(prefix, "/")
		if i < 0 {
			return publicAPI
		}
		prefix = prefix[:i]
		if allowed, ok := mayImport[prefix+"/"]; ok {
			return allowed
		}
		if strings.HasPrefix(prefix, "actors/") {
			if allowed, ok := mayImport[prefix]; ok {
				return allowed
			}
		}
	}
}

func matches(patterns []string, pkg string) bool {
	for _, p := range patterns {
		if p == pkg || strings.HasSuffix(p, "/") && strings.HasPrefix(pkg, p) {
			return true
		}
	}
	return false
}
