package devpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// installPatience is how long one process waits for another that is installing.
const installPatience = 10 * time.Minute

// install gets server binaries for a machine that has none.
func (s search) install(ctx context.Context) (binaries, error) {
	base, err := baseDir(s.as)
	if err != nil {
		return binaries{}, err
	}
	guard, err := lockWithin(filepath.Join(base, "install.lock"), installPatience)
	if err != nil {
		return binaries{}, fmt.Errorf("wait for another process that installs Postgres: %w", err)
	}
	defer guard.Close()
	if b, ok := s.find(); ok { // installed by the process that we waited for
		return b, nil
	}
	var errs []error
	if canUseApt() {
		err := aptInstall(ctx, createClusterDir, s.exact)
		if b, ok := s.find(); ok {
			return b, nil
		}
		errs = append(errs, err)
	}
	b, err := s.fetchEmbedded(base)
	if err == nil {
		return b, nil
	}
	errs = append(errs, err)
	if b, err = s.fetchNPM(ctx, base); err == nil {
		return b, nil
	}
	errs = append(errs, err)
	return binaries{}, fmt.Errorf("found no Postgres server binaries of version %s and could not get any. Install them with: %s\n(or set GENDURABLE_PG_BIN to the directory of initdb and postgres, or GENDURABLE_DATABASE_URL to the URL of a running server)\n%w",
		s.wanted(), installCommand(), errors.Join(errs...))
}

func (s search) wanted() string {
	if s.exact != 0 {
		return fmt.Sprint(s.exact)
	}
	return fmt.Sprintf("%d or newer", s.min)
}

// installCommand is the one command to type on this kind of machine.
func installCommand() string {
	for _, c := range []struct{ tool, command string }{
		{"apt-get", "sudo apt-get install postgresql"},
		{"dnf", "sudo dnf install postgresql-server"},
		{"apk", "sudo apk add postgresql"},
		{"pacman", "sudo pacman -S postgresql"},
		{"brew", "brew install postgresql@17"},
		{"winget", "winget install PostgreSQL.PostgreSQL.17"},
	} {
		if _, err := exec.LookPath(c.tool); err == nil {
			return c.command
		}
	}
	return "go run ./internal/devpg/cmd/devpg fetch -version 17 -dir .devpg/pg17"
}

func canUseApt() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil && runtime.GOOS == "linux" && os.Geteuid() == 0
}

// createClusterDir is where Debian's packages look for the wish not to have a server set up and started.
const createClusterDir = "/etc/postgresql-common/createcluster.d"

// aptInstall installs the server package of the distribution, without the server that it would start.
func aptInstall(ctx context.Context, configDir string, major int) error {
	if err := os.MkdirAll(configDir, 0o755); err != nil {
		return err
	}
	clusterConfig := filepath.Join(configDir, "gendurable.conf")
	if err := os.WriteFile(clusterConfig, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return err
	}
	defer os.Remove(clusterConfig)
	pkg := "postgresql"
	if major != 0 {
		pkg = fmt.Sprintf("postgresql-%d", major)
	}
	for _, args := range [][]string{
		{"update", "-q"},
		{"install", "-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", pkg},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, lastLines(out))
		}
	}
	return nil
}

func lastLines(out []byte) string {
	return strings.TrimSpace(string(out[max(0, len(out)-1000):]))
}

// defaultMajor is what is fetched when any version that is new enough will do.
const defaultMajor = 17

// cacheDir is where fetched binaries stay. Root's own cache is out of reach for the server's user.
func (s search) cacheDir(base string) string {
	if s.as == nil {
		if cache, err := os.UserCacheDir(); err == nil {
			return filepath.Join(cache, "gendurable", "postgres")
		}
	}
	return filepath.Join(base, "binaries")
}

// fetchNPM gets binaries with the npm client, from where networks that shut out the library's source may
// still let them come.
func (s search) fetchNPM(ctx context.Context, base string) (binaries, error) {
	major := s.exact
	if major == 0 {
		major = max(defaultMajor, s.min)
	}
	bin, err := Fetch(ctx, major, filepath.Join(s.cacheDir(base), fmt.Sprintf("npm-%d", major)))
	if err != nil {
		return binaries{}, err
	}
	return s.check(bin)
}

// fetchEmbedded gets binaries with a library that is made for that. It unpacks them as part of starting
// a server of its own, which we have no use for; as root that server cannot even start, but the binaries
// are there by then.
func (s search) fetchEmbedded(base string) (binaries, error) {
	version := embedded.V17
	switch s.exact {
	case 15:
		version = embedded.V15
	case 16:
		version = embedded.V16
	case 18:
		version = embedded.V18
	}
	dir := filepath.Join(s.cacheDir(base), string(version))
	if b, err := s.check(filepath.Join(dir, "bin")); err == nil {
		return b, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return binaries{}, err
	}
	work, err := os.MkdirTemp("", "gendurable-fetch-")
	if err != nil {
		return binaries{}, err
	}
	defer os.RemoveAll(work)
	pg := embedded.NewDatabase(embedded.DefaultConfig().
		Version(version).
		BinariesPath(dir).
		CachePath(filepath.Join(work, "cache")).
		RuntimePath(filepath.Join(work, "run")).
		DataPath(filepath.Join(work, "data")).
		Port(uint32(FreePort())).
		Logger(io.Discard))
	startErr := pg.Start()
	if startErr == nil {
		_ = pg.Stop()
	}
	b, err := s.check(filepath.Join(dir, "bin"))
	if err != nil {
		return binaries{}, errors.Join(startErr, err)
	}
	return b, nil
}
