package devpg

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// initdb creates the data directory under another name first: a half-made one must never be taken for
// real after we were killed.
func (h *home) initdb(ctx context.Context, bin string, durable bool) error {
	half := h.data() + ".init"
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	if err := h.mkdirOwned(half); err != nil {
		return err
	}
	var err error
	if durable {
		err = h.runInitdb(ctx, bin, half)
	} else {
		err = h.copySeed(ctx, bin, half)
	}
	if err != nil {
		return err
	}
	return os.Rename(half, h.data())
}

// copySeed copies what initdb made the last time, as that takes a tenth of the time of another run. The
// copies are kept in the temporary directory, one for each build of Postgres.
func (h *home) copySeed(ctx context.Context, bin, dir string) error {
	base, err := baseDir(h.account)
	if err != nil {
		return err
	}
	st, err := os.Stat(filepath.Join(bin, exe("initdb")))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(fmt.Append(nil, bin, st.ModTime().UnixNano(), st.Size()))
	seed := filepath.Join(base, "initdb-"+hex.EncodeToString(sum[:8]))
	guard, err := lockWithin(seed+".lock", time.Minute)
	if err != nil {
		return err
	}
	defer guard.Close()
	data, manifest := filepath.Join(seed, "data"), filepath.Join(seed, "files")
	// Programs that clean up temporary directories may have taken some of the files.
	if want, err := os.ReadFile(manifest); err == nil {
		if n, err := h.copyTree(data, dir); err == nil && strconv.Itoa(n) == string(want) {
			return nil
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := h.mkdirOwned(dir); err != nil {
			return err
		}
	}
	if err := h.runInitdb(ctx, bin, dir, "--no-sync"); err != nil {
		return err
	}
	if err := os.RemoveAll(seed); err != nil {
		return err
	}
	if err := os.MkdirAll(seed, 0o700); err != nil {
		return err
	}
	n, err := h.copyTree(dir, data)
	if err != nil {
		return fmt.Errorf("keep a copy of the new data directory: %w", err)
	}
	return os.WriteFile(manifest, []byte(strconv.Itoa(n)), 0o600)
}

// copyTree copies directories and regular files, gives them to the server's user and returns how many
// there were.
func (h *home) copyTree(from, to string) (n int, err error) {
	err = filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		n++
		if d.IsDir() {
			return h.mkdirOwned(filepath.Join(to, rel))
		}
		return h.copyFile(name, filepath.Join(to, rel))
	})
	return n, err
}

func (h *home) copyFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, h.account.give(w), w.Close())
}

func (h *home) runInitdb(ctx context.Context, bin, dir string, flags ...string) error {
	args := []string{"-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"}
	args = append(args, flags...)
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(bin, exe("initdb")), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	p, err := h.startProcess(cmd)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.kill()
		return fmt.Errorf("initdb did not end in time: %w", ctx.Err())
	}
	if p.err != nil {
		return fmt.Errorf("initdb failed (%w):\n%s", p.err, out.String())
	}
	return nil
}
