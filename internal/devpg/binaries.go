package devpg

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// search is what server binaries to look for.
type search struct {
	bin   string   // the only directory to accept, if set
	min   int      // oldest major version; 0 means OldestMajor
	exact int      // the only major version to accept, if set: that of existing data
	as    *account // who must be able to run them
}

// binaries is a directory that holds initdb and postgres.
type binaries struct {
	dir   string
	major int
}

// findOrInstall returns server binaries, getting some if the machine has none.
func findOrInstall(ctx context.Context, s search) (binaries, error) {
	if s.min == 0 {
		s.min = OldestMajor
	}
	if s.bin == "" {
		s.bin = os.Getenv("GENDURABLE_PG_BIN")
	}
	if s.bin != "" {
		return s.check(s.bin)
	}
	if b, ok := s.find(); ok {
		return b, nil
	}
	return s.install(ctx)
}

func (s search) find() (binaries, bool) {
	for _, dir := range places() {
		if b, err := s.check(dir); err == nil {
			return b, true
		}
	}
	return binaries{}, false
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// check tells whether the binaries in dir are there and of a version that we accept.
func (s search) check(dir string) (binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return binaries{}, err
	}
	if !s.as.reaches(dir) {
		if _, err := os.Stat(dir); err == nil {
			return binaries{}, fmt.Errorf("as root the server runs as user %s, who cannot enter %s: put the binaries where everybody may read them", s.as, dir)
		}
	}
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, exe(name))); err != nil {
			return binaries{}, fmt.Errorf("no Postgres server binaries in %s: %w", dir, err)
		}
	}
	out, err := exec.Command(filepath.Join(dir, exe("postgres")), "--version").CombinedOutput()
	if err != nil {
		return binaries{}, fmt.Errorf("ask %s for its version: %w: %s", filepath.Join(dir, "postgres"), err, out)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return binaries{}, fmt.Errorf("%s does not look like Postgres: it says %q", filepath.Join(dir, "postgres"), out)
	}
	major, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return binaries{}, err
	}
	if s.exact != 0 && major != s.exact {
		return binaries{}, fmt.Errorf("the data was made by Postgres %d and %s is Postgres %d: set GENDURABLE_PG_BIN to binaries of version %d, or remove the data", s.exact, dir, major, s.exact)
	}
	if s.exact == 0 && major < s.min {
		return binaries{}, fmt.Errorf("%s is Postgres %d, and %d is the oldest that will do", dir, major, s.min)
	}
	return binaries{dir: dir, major: major}, nil
}

// places lists where server binaries may be, best first.
func places() []string {
	var dirs []string
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/usr/lib/postgresql*/bin",
		"/usr/libexec/postgresql*",
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
		"/usr/local/pgsql/bin",
	} {
		dirs = append(dirs, newestFirst(pattern)...)
	}
	if runtime.GOOS == "windows" {
		dirs = append(dirs, newestFirst(filepath.Join(os.Getenv("ProgramFiles"), "PostgreSQL", "*", "bin"))...)
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	return dirs
}

var numberPattern = regexp.MustCompile(`\d+`)

func newestFirst(pattern string) []string {
	dirs, _ := filepath.Glob(pattern)
	version := func(dir string) int {
		n, _ := strconv.Atoi(numberPattern.FindString(dir))
		return n
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	return dirs
}
