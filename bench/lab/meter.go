package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Cost is what a trial used.
type Cost struct {
	// Postgres and Client are CPU seconds: of the server with all its processes, and of this process and its children.
	Postgres float64 `json:"postgres_cpu_s"`
	Client   float64 `json:"client_cpu_s"`
	// WAL is in bytes, of the whole server. Commits are those in the trial's database.
	WAL     int64 `json:"wal_bytes"`
	Commits int64 `json:"commits"`
}

// Meter measures a trial from Start to Stop.
type Meter struct {
	db     *Database
	before Cost
}

// Meter starts measuring.
func (d *Database) Meter(ctx context.Context) (*Meter, error) {
	c, err := d.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("lab: start the meter: %w", err)
	}
	return &Meter{db: d, before: c}, nil
}

// Stop returns what was used since the start. Call it when the system has closed its connections: backends report
// their commits at the latest when they end.
func (m *Meter) Stop(ctx context.Context) (Cost, error) {
	if err := m.db.quiet(ctx); err != nil {
		return Cost{}, err
	}
	c, err := m.db.read(ctx)
	if err != nil {
		return Cost{}, fmt.Errorf("lab: stop the meter: %w", err)
	}
	return Cost{
		Postgres: c.Postgres - m.before.Postgres,
		Client:   c.Client - m.before.Client,
		WAL:      c.WAL - m.before.WAL,
		Commits:  max(c.Commits-m.before.Commits, 0),
	}, nil
}

// quiet waits until the system's backends are gone, ten seconds at most.
func (d *Database) quiet(ctx context.Context) error {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		var n int
		err := d.Server.admin.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = $1 AND backend_type = 'client backend' AND application_name <> 'bench'`, d.Name).Scan(&n)
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func (d *Database) read(ctx context.Context) (c Cost, err error) {
	err = d.Server.admin.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
		(SELECT xact_commit FROM pg_stat_database WHERE datname = $1)`, d.Name).Scan(&c.WAL, &c.Commits)
	if err != nil {
		return c, err
	}
	if c.Postgres, err = treeCPU(d.Server.pg.PID()); err != nil {
		return c, err
	}
	c.Client = selfCPU()
	return c, nil
}

// selfCPU is the CPU time of this process and of its children that have ended (the engines of workload nodes). The
// server's processes are children as well, but have not ended.
func selfCPU() float64 {
	var total float64
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err == nil {
			total += seconds(u.Utime) + seconds(u.Stime)
		}
	}
	return total
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// treeCPU is the CPU time of a postmaster, of its children, and of the children that have ended. A child that ends while
// we read would be missed or counted twice, so it is read again until none did.
func treeCPU(pid int) (float64, error) {
	for {
		before, err := readStat(pid)
		if err != nil {
			return 0, fmt.Errorf("the CPU time of Postgres is not to be had: %w", err)
		}
		entries, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return 0, err
		}
		var children int64
		for _, e := range entries {
			child, err := strconv.Atoi(filepath.Base(e))
			if err != nil {
				continue
			}
			if s, err := readStat(child); err == nil && s.parent == pid {
				children += s.own
			}
		}
		after, err := readStat(pid)
		if err == nil && after.ended == before.ended {
			return float64(after.own+after.ended+children) / ticksPerSecond, nil
		}
	}
}

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	s, ok := parseStat(string(raw))
	if !ok {
		return s, fmt.Errorf("/proc/%d/stat reads %q", pid, raw)
	}
	return s, nil
}

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

type stat struct {
	pid, parent int
	own, ended  int64 // ticks: of the process itself, and of its children that ended
}

// parseStat reads a line of /proc/<pid>/stat. The name in parentheses may contain spaces and parentheses.
func parseStat(line string) (s stat, ok bool) {
	open, shut := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || shut < open {
		return s, false
	}
	rest := strings.Fields(line[shut+1:])
	if len(rest) < 15 {
		return s, false
	}
	num := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		ok = ok && err == nil
		return n
	}
	ok = true
	s.pid = int(num(strings.TrimSpace(line[:open])))
	s.parent = int(num(rest[1]))
	s.own = num(rest[11]) + num(rest[12])
	s.ended = num(rest[13]) + num(rest[14])
	return s, ok
}
