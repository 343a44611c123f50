package gendurable_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/internal/devpg"
	"github.com/gendurable/gendurable/pg"
)

// document is a text for users, and what it is called in a failure.
type document struct{ name, text string }

// documents are the markdown files of the root and of docs/.
func documents(t *testing.T) []document {
	t.Helper()
	var docs []document
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			docs = append(docs, document{name, read(t, name)})
		}
	}
	if len(docs) < 5 {
		t.Fatalf("only %d documents found: is the test in the root of the module?", len(docs))
	}
	return docs
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sources are the Go files of the module, by name.
func sources(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".go"):
			b, err := os.ReadFile(name)
			files[name] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// unindented is the text with the white space around each line taken off.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// fenced returns the code blocks of a language, and the line on which each begins.
func fenced(doc document, language string) map[int]string {
	blocks := make(map[int]string)
	at, n := 0, 0
	for line := range strings.Lines(doc.text) {
		n++
		trimmed := strings.TrimSpace(line)
		switch {
		case at == 0 && trimmed == "```"+language:
			at = n
		case at != 0 && trimmed == "```":
			at = 0
		case at != 0:
			blocks[at] += line
		}
	}
	return blocks
}

// commentCode returns the indented parts of a package comment.
func commentCode(doc document) map[int]string {
	blocks := make(map[int]string)
	at, n := 0, 0
	for line := range strings.Lines(doc.text) {
		n++
		code, ok := strings.CutPrefix(line, "//\t")
		switch {
		case ok && at == 0:
			at = n
			fallthrough
		case ok:
			blocks[at] += code
		case strings.TrimSpace(line) != "//":
			at = 0
		case at != 0:
			blocks[at] += "\n"
		}
	}
	return blocks
}

// TestSnippets holds every Go block of the guides and of the package comment against code that compiles.
func TestSnippets(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, text := range sources(t) {
		all.WriteString("\n" + unindented(text))
	}
	code, checked := all.String(), 0
	check := func(doc document, blocks map[int]string) {
		for line, block := range blocks {
			checked++
			if !strings.Contains(code, "\n"+strings.TrimSpace(unindented(block))+"\n") {
				t.Errorf("%s:%d: this block is not a run of lines of any Go file of the module:\n%s", doc.name, line, block)
			}
		}
	}
	for _, doc := range documents(t) {
		check(doc, fenced(doc, "go"))
	}
	comment := document{"doc.go", read(t, "doc.go")}
	check(comment, commentCode(comment))
	if checked < 30 {
		t.Errorf("only %d blocks found", checked)
	}
}

// TestSQL runs the SQL of the guides.
func TestSQL(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t, pg.Migrate)
	for _, doc := range documents(t) {
		for line, block := range fenced(doc, "sql") {
			if _, err := pool.Exec(t.Context(), block); err != nil {
				t.Errorf("%s:%d: %v", doc.name, line, err)
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	notSlug = regexp.MustCompile("[^a-z0-9 _-]")
)

// prose is a document without its code blocks.
func prose(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			b.WriteString(line)
		}
	}
	return b.String()
}

// slugs are the anchors of a document's headings, as GitHub makes them.
func slugs(text string) []string {
	var out []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		plain := notSlug.ReplaceAllString(strings.ToLower(m[1]), "")
		out = append(out, strings.ReplaceAll(plain, " ", "-"))
	}
	return out
}

// TestLinks follows the links between files, and to headings.
func TestLinks(t *testing.T) {
	t.Parallel()
	for _, doc := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(prose(doc.text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := doc.name
			if path != "" {
				target = filepath.Join(filepath.Dir(doc.name), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads nowhere", doc.name, m[1])
			} else if anchor != "" && !slices.Contains(slugs(prose(read(t, target))), anchor) {
				t.Errorf("%s: the link %s names no heading of %s", doc.name, m[1], target)
			}
		}
	}
}

var (
	codeSpan   = regexp.MustCompile("`([^`\n]+)`")
	makeTarget = regexp.MustCompile(`(?m)(?:^|\s|&& )make ([a-z][a-z-]*)`)
	goRun      = regexp.MustCompile(`go run (\./[\w./-]+)(.*)`)
	flagName   = regexp.MustCompile(`\s-([a-z][a-z-]*)`)
)

// commands is what a document shows as typed at a shell: its code spans and its shell blocks.
func commands(doc document) string {
	var out []string
	for _, m := range codeSpan.FindAllStringSubmatch(doc.text, -1) {
		out = append(out, m[1])
	}
	for _, language := range []string{"sh", "bash", "console"} {
		for _, block := range fenced(doc, language) {
			out = append(out, block)
		}
	}
	return strings.Join(out, "\n")
}

// TestCommands looks for the make targets, programs and flags that the documents name.
func TestCommands(t *testing.T) {
	t.Parallel()
	makefile, targets := read(t, "Makefile"), 0
	for _, doc := range documents(t) {
		typed := commands(doc)
		for _, m := range makeTarget.FindAllStringSubmatch(typed, -1) {
			targets++
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(m[1]) + `:`).MatchString(makefile) {
				t.Errorf("%s: the Makefile has no target %q", doc.name, m[1])
			}
		}
		for _, m := range goRun.FindAllStringSubmatch(typed, -1) {
			program := packageText(t, doc, m[1])
			arguments, _, _ := strings.Cut(m[2], " -- ")
			for _, f := range flagName.FindAllStringSubmatch(arguments, -1) {
				if !strings.Contains(program, `"`+f[1]+`"`) {
					t.Errorf("%s: %s has no flag -%s", doc.name, m[1], f[1])
				}
			}
		}
	}
	if targets < 2 {
		t.Errorf("only %d make targets found; README.md names two", targets)
	}
}

func packageText(t *testing.T, doc document, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Errorf("%s: there is no program %s", doc.name, dir)
	}
	var b strings.Builder
	for _, name := range names {
		b.WriteString(read(t, name))
	}
	return b.String()
}

// TestLogLines looks for the log lines that the documents quote.
func TestLogLines(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	for name, text := range sources(t) {
		if !strings.HasSuffix(name, "_test.go") {
			code.WriteString(text)
		}
	}
	for _, doc := range documents(t) {
		for _, m := range codeSpan.FindAllStringSubmatch(doc.text, -1) {
			line, ok := strings.CutPrefix(m[1], "gendurable: ")
			if ok && !strings.Contains(code.String(), line) {
				t.Errorf("%s: nothing logs %q", doc.name, m[1])
			}
		}
	}
}

var (
	required    = regexp.MustCompile(`(?m)^(?:require )?\t?([\w.-]+\.[\w./-]+) v\S+$`)
	tool        = regexp.MustCompile(`(?m)^(?:tool )\t?([\w.-]+\.[\w./-]+)$`)
	tableModule = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
)

// TestDependencies holds docs/dependencies.md against go.mod, and those of tools and limiter/redis.
func TestDependencies(t *testing.T) {
	t.Parallel()
	mod, tools, redis := read(t, "go.mod"), read(t, "tools/go.mod"), read(t, "limiter/redis/go.mod")
	explained := tableModule.FindAllStringSubmatch(read(t, "docs/dependencies.md"), -1)
	for _, m := range explained {
		if !strings.Contains(mod+tools+redis, m[1]+" v") {
			t.Errorf("docs/dependencies.md explains %s, which neither go.mod nor the ones of tools and limiter/redis require", m[1])
		}
	}
	direct := append(required.FindAllStringSubmatch(mod, -1), tool.FindAllStringSubmatch(tools, -1)...)
	for _, m := range required.FindAllStringSubmatch(redis, -1) {
		if m[1] != "github.com/gendurable/gendurable" {
			direct = append(direct, m)
		}
	}
	if len(direct) == 0 {
		t.Error("no direct requirements found in go.mod")
	}
	for _, d := range direct {
		if !slices.ContainsFunc(explained, func(m []string) bool { return strings.HasPrefix(d[1], m[1]) }) {
			t.Errorf("docs/dependencies.md does not explain %s", d[1])
		}
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(mod)[1]
	if readme := read(t, "README.md"); !strings.Contains(readme, "Go "+version) {
		t.Errorf("README.md does not name Go %s, which go.mod requires", version)
	}
}

var (
	filePath   = regexp.MustCompile(`^[\w./*-]+\.(?:go|sql|md|mod)$`)
	indexNames = regexp.MustCompile(`INDEX IF NOT EXISTS (\w+)`)
)

// TestPaths looks for the files that the documents name.
func TestPaths(t *testing.T) {
	t.Parallel()
	for _, doc := range documents(t) {
		for _, m := range codeSpan.FindAllStringSubmatch(doc.text, -1) {
			if !filePath.MatchString(m[1]) {
				continue
			}
			found := false
			for _, dir := range []string{"", filepath.Dir(doc.name), "pg/sql"} {
				names, err := filepath.Glob(filepath.Join(dir, m[1]))
				found = found || err == nil && len(names) > 0
			}
			if !found {
				t.Errorf("%s: there is no file %s", doc.name, m[1])
			}
		}
	}
}

// TestArchitectureIsComplete looks whether the map has every statement, index and package.
func TestArchitectureIsComplete(t *testing.T) {
	t.Parallel()
	text := read(t, "ARCHITECTURE.md")
	files, err := filepath.Glob("pg/sql/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no statements found: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".sql")
		family, _, _ := strings.Cut(name, "_")
		if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, "`"+family+"_*`") {
			t.Errorf("ARCHITECTURE.md does not say what the statement %s locks", name)
		}
	}
	migrations, err := filepath.Glob("pg/migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range migrations {
		for _, m := range indexNames.FindAllStringSubmatch(read(t, file), -1) {
			if !strings.Contains(text, "`"+m[1]) {
				t.Errorf("ARCHITECTURE.md does not say what the index %s is for", m[1])
			}
		}
	}
	packages, err := filepath.Glob("actors/*/")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range packages {
		if info, err := os.Stat(dir); err == nil && info.IsDir() && !strings.Contains(text, dir) {
			t.Errorf("ARCHITECTURE.md does not name the package %s", dir)
		}
	}
}

var firstCell = regexp.MustCompile("(?m)^\\| ((?:`[A-Z]\\w+`(?:, )?)+) \\|")

// TestCounters looks whether the counters that docs/operations.md explains exist.
func TestCounters(t *testing.T) {
	t.Parallel()
	engine, queue := reflect.TypeFor[gendurable.Stats](), reflect.TypeFor[gendurable.QueueStats]()
	firewall := reflect.TypeFor[cluster.FirewallStats]()
	explained := 0
	for _, row := range firstCell.FindAllStringSubmatch(read(t, "docs/operations.md"), -1) {
		for _, m := range codeSpan.FindAllStringSubmatch(row[1], -1) {
			explained++
			_, ofEngine := engine.FieldByName(m[1])
			_, ofQueue := queue.FieldByName(m[1])
			_, ofFirewall := firewall.FieldByName(m[1])
			if !ofEngine && !ofQueue && !ofFirewall {
				t.Errorf("docs/operations.md explains the counter %s, which Stats does not have", m[1])
			}
		}
	}
	if explained < 10 {
		t.Errorf("only %d counters found in docs/operations.md", explained)
	}
}
