//go:build unix

package bed

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

// patience is how long a test waits for what must happen. It says nothing about how long it should take.
const patience = 120 * time.Second

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(patience)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-late:
			t.Fatalf("in vain waited for: %s", what)
		case <-look.C:
		}
	}
}

// fleet is several nodes, each a process, and the database that they share.
type fleet struct {
	t      *testing.T
	pool   *pgxpool.Pool
	client *gendurable.Client
	lanes  int
	ttl    time.Duration
	nodes  []*node
	starts int
}

// node is one place of the fleet: an address, and the process that is there now.
type node struct {
	config nodeConfig
	db     *devpg.Proxy // its way to the database
	peers  *wire        // the others' way to it
	cmd    *exec.Cmd
	stdin  io.WriteCloser
}

// ttl is that of the fleets.
const ttl = 3 * time.Second

func newFleet(t *testing.T, nodes, lanes int) *fleet {
	t.Helper()
	f := emptyFleet(t, lanes)
	for i := range nodes {
		n := f.add(fmt.Sprintf("node-%d", i))
		f.start(n)
	}
	f.converged("at first")
	return f
}

// add makes a place for a node.
func (f *fleet) add(name string) *node {
	f.t.Helper()
	db, err := devpg.NewProxy(f.pool.Config().ConnString())
	if err != nil {
		f.t.Fatal(err)
	}
	n := &node{db: db, peers: newWire(f.t)}
	f.t.Cleanup(func() {
		n.kill()
		n.peers.close()
		_ = db.Close()
	})
	n.config = nodeConfig{
		URL: db.URL(), Ledger: f.pool.Config().ConnString(), Name: name, Address: n.peers.target, Advertise: n.peers.address(),
		Lanes: f.lanes, TTL: f.ttl, Role: cluster.RoleWorker,
	}
	f.nodes = append(f.nodes, n)
	return n
}

// start starts a process in a node's place and waits until its engine runs.
func (f *fleet) start(n *node) {
	f.t.Helper()
	f.starts++
	n.config.Number = f.starts
	text, err := json.Marshal(n.config)
	if err != nil {
		f.t.Fatal(err)
	}
	n.cmd = exec.Command(os.Args[0])
	n.cmd.Env = append(os.Environ(), envNode+"="+string(text))
	n.cmd.Stderr = f.t.Output()
	stdin, err := n.cmd.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	stdout, err := n.cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	n.stdin = stdin
	for out := bufio.NewReader(stdout); ; { // the library's providers greet, too
		line, err := out.ReadString('\n')
		if err != nil {
			f.t.Fatalf("%s ended with %q, %v", n.config.Name, line, err)
		}
		if line == "ready\n" {
			return
		}
	}
}

// order has a node do something, see obey.
func (f *fleet) order(n *node, what string, whom any) {
	f.t.Helper()
	if _, err := fmt.Fprintln(n.stdin, what, whom); err != nil {
		f.t.Fatalf("tell %s to %s: %v", n.config.Name, what, err)
	}
}

func (n *node) signal(s syscall.Signal) { _ = n.cmd.Process.Signal(s) }

// kill ends a node with SIGKILL, also one that is stopped.
func (n *node) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
		n.stdin.Close()
		n.cmd = nil
	}
}

// terminate ends a node with SIGTERM and waits for its clean end.
func (f *fleet) terminate(n *node) {
	f.t.Helper()
	n.signal(syscall.SIGTERM)
	if err := n.cmd.Wait(); err != nil {
		f.t.Errorf("%s did not end cleanly: %v", n.config.Name, err)
	}
	n.stdin.Close()
	n.cmd = nil
}

// served says whether each lane is served by exactly one living node, and how many nodes live.
func (f *fleet) served() (each bool, nodes int) {
	f.t.Helper()
	rows, err := f.pool.Query(context.Background(), `SELECT lanes FROM gen_durable_nodes
		WHERE member <> '' AND member_beat > now() - $1::bigint * interval '1 microsecond'`, f.ttl.Microseconds())
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Close()
	seats := map[string]int{}
	for rows.Next() {
		var lanes []string
		if err := rows.Scan(&lanes); err != nil {
			f.t.Fatal(err)
		}
		nodes++
		for _, lane := range lanes {
			seats[lane]++
		}
	}
	for lane, n := range seats {
		if n != 1 || strings.HasSuffix(lane, "#sweep") {
			return false, nodes
		}
	}
	return len(seats) == f.lanes, nodes
}

// converged waits until all processes of the fleet are in, and serve each lane once: no split has outlived its cause.
func (f *fleet) converged(when string) {
	f.t.Helper()
	alive := 0
	for _, n := range f.nodes {
		if n.cmd != nil {
			alive++
		}
	}
	eventually(f.t, fmt.Sprintf("%s: %d nodes that serve %d lanes", when, alive, f.lanes), func() bool {
		each, nodes := f.served()
		return each && nodes == alive
	})
}

func (f *fleet) count(sql string, args ...any) int {
	f.t.Helper()
	var n int
	if err := f.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// batch is a load: instances that were inserted together, some of which share keys that run one at a time, and others keys of a
// gate.
type batch struct {
	f           *fleet
	first, last int64
	size        int
}

func (f *fleet) insert(n int) batch {
	f.t.Helper()
	m := chain(nil, 0)
	insts := make([]fsm.Instance, n)
	for i := range insts {
		var key string
		switch {
		case i%5 == 0:
			key = fmt.Sprintf("key:%d", i%4)
		case i%5 == 2:
			key = fmt.Sprintf("%s:%d", narrow, i%2)
		default:
			insts[i] = m.New(job{})
			continue
		}
		insts[i] = m.New(job{Key: key}, fsm.ConcurrencyKey(key))
	}
	answers, err := f.client.InsertMany(f.t.Context(), insts)
	if err != nil {
		f.t.Fatal(err)
	}
	return batch{f, int64(answers[0].ID), int64(answers[n-1].ID), n}
}

// finished waits until so many steps of the batch have.
func (b batch) finished(steps int) {
	b.f.t.Helper()
	eventually(b.f.t, fmt.Sprintf("%d finished steps", steps), func() bool {
		return b.f.count(`SELECT count(*) FROM ledger WHERE event = 'finished' AND instance BETWEEN $1 AND $2`, b.first, b.last) >= steps
	})
}

// check waits until all of the batch is done, and holds the ledger against what was promised: each step ran to its end, none
// ran again after it was committed, runs of one key never overlapped, nor more of a gate's than its limit, and at most so
// many runs were repeated.
func (b batch) check(allowed int) {
	f := b.f
	f.t.Helper()
	eventually(f.t, "everything done", func() bool {
		return f.count(`SELECT count(*) FROM gen_durable WHERE status = 'done' AND id BETWEEN $1 AND $2`, b.first, b.last) == b.size
	})
	for _, c := range []struct {
		what, sql string
		min, max  int
	}{
		{"steps that finished", `SELECT count(DISTINCT (instance, step)) FROM ledger WHERE event = 'finished' AND instance BETWEEN $1 AND $2`, 3 * b.size, 3 * b.size},
		{"runs", `SELECT count(*) FROM ledger WHERE event = 'started' AND instance BETWEEN $1 AND $2`, 3 * b.size, 3*b.size + allowed},
		{"times that a committed step ran again", `SELECT count(*) FROM (SELECT step < max(step) OVER (PARTITION BY instance ORDER BY id) AS back
			FROM ledger WHERE instance BETWEEN $1 AND $2) l WHERE back`, 0, 0},
		{"steps that ran twice in one process", `SELECT count(*) FROM (SELECT FROM ledger WHERE event = 'started' AND instance BETWEEN $1 AND $2
			GROUP BY instance, step, worker HAVING count(*) > 1) l`, 0, 0},
		{"runs of one key that overlapped", `WITH run AS (SELECT s.key, s.instance, s.id AS began, f.id AS ended FROM ledger s
			JOIN ledger f USING (instance, step, worker) WHERE s.event = 'started' AND f.event = 'finished' AND s.key LIKE 'key:%' AND s.instance BETWEEN $1 AND $2)
			SELECT count(*) FROM run a JOIN run b USING (key) WHERE a.instance <> b.instance AND b.began > a.began AND b.began < a.ended`, 0, 0},
		{"runs at once of one key of the gate", `WITH run AS (SELECT s.key, s.id AS began, f.id AS ended FROM ledger s
			JOIN ledger f USING (instance, step, worker) WHERE s.event = 'started' AND f.event = 'finished' AND s.key LIKE 'narrow:%' AND s.instance BETWEEN $1 AND $2)
			SELECT coalesce(max(n), 0)::int FROM (SELECT count(*) AS n FROM run a JOIN run b ON b.key = a.key AND b.began <= a.began AND b.ended > a.began
			GROUP BY a.began) AS at_once`, 1, narrowLimit},
	} {
		if n := f.count(c.sql, b.first, b.last); n < c.min || n > c.max {
			f.t.Errorf("%s: %d, want %d to %d", c.what, n, c.min, c.max)
		}
	}
}

// wire carries connections from one port to another, until it is cut.
type wire struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	isCut bool
	conns map[net.Conn]bool
}

// newWire makes a wire to a free port of this machine.
func newWire(t *testing.T) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: listener, target: freeAddress(), conns: map[net.Conn]bool{}}
	go w.run()
	return w
}

// freeAddress is an address of this machine at which nobody listens, and that nobody gets by chance: not even a connection to
// it, while the process that listens there is restarted.
func freeAddress() string { return fmt.Sprintf("127.0.0.1:%d", devpg.FreePort()) }

func (w *wire) address() string { return w.listener.Addr().String() }

func (w *wire) run() {
	for {
		from, err := w.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", w.target)
		if err != nil || !w.keep(from, to) {
			from.Close()
			if to != nil {
				to.Close()
			}
			continue
		}
		for _, c := range [][2]net.Conn{{from, to}, {to, from}} {
			go func() {
				_, _ = io.Copy(c[0], c[1])
				c[0].Close()
			}()
		}
	}
}

func (w *wire) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		if c != nil {
			w.conns[c] = true
		}
	}
	return !w.isCut
}

// cut breaks the wire, or mends it.
func (w *wire) cut(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = yes
	if yes {
		for c := range w.conns {
			c.Close()
		}
		clear(w.conns)
	}
}

func (w *wire) close() {
	w.listener.Close()
	w.cut(true)
}
