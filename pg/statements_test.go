package pg

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// columnTypes are the types of the columns that each statement of the host, of nodes and of the collection returns.
var columnTypes = map[string]string{
	"insert_one":    "int8",
	"insert_many":   "int8",
	"insert_alike":  "int8",
	"insert_bare":   "int8",
	"insert_keyed":  "int8 int8 int8 int8",
	"insert_forget": "",
	"insert_found":  "int8 int8",
	"signal":        "int8 int8 int8 text bool",
	"signal_one":    "int8 int8 text bool",
	"get": "int8 text int4 text text jsonb jsonb text text int2 int4 int4 text[] timestamptz timestamptz text text float8 text " +
		"text[] int8 int4 text timestamptz text timestamptz timestamptz",
	"settled": "int8 text jsonb text text[]",
	"explain": "timestamptz int8 text int4 text text text int2 int4 timestamptz text text float8 text[] timestamptz int4 text timestamptz " +
		"text text timestamptz timestamptz int8 text timestamptz int8 float8 int4 int2[] float8[] float8[] float8 int4 float8 int2[] " +
		"float8[] float8[] text[] int8[] text[] text[] text[] text[] timestamptz int4",
	"test_queues":      "text",
	"test_collapse":    "int8",
	"test_advance":     "int8 bool",
	"test_timeouts":    "int8",
	"test_expire":      "",
	"test_top":         "bool",
	"standing":         "int8 text",
	"claim_ahead":      "int8",
	"cancel":           "bool text int4",
	"collect":          "int4 timestamptz int8",
	"collect_requests": "int4 timestamptz",
	"collect_flushers": "int4",
	"collect_nodes":    "int4",
	"collect_history":  "int4 int8",
	"cancel_history":   "",
	"history":          "int8 timestamptz text int4 text text text text text int8",
	"vacuum":           "",
	"vacuum_stats":     "int8 int8 bool",
	"node_lock":        "text",
	"node_put":         "",
	"node_beat":        "text",
	"node_remove":      "",
	"reclaim":          "int4 text[] int8[] int4[] text[] int2[] int8",
	"member_beat":      "bool text text text text text text[] text[] text[] jsonb",
	"member_leave":     "",
	"inbox_page":       "int8 text jsonb timestamptz",
	"children_page":    "int8 text text text jsonb jsonb text",
	"limit_admit":      "int4 int4 int2 bool bool float8 float8 int2[] float8[] float8[] float8[]",
	"limit_credit":     "int4",

	"limit_gates_lock":  "int4 text int4 bool",
	"limit_gates_heal":  "int4 int4 int4 int4",
	"limit_rates_sweep": "int4 text int4 int4 int4",
	"offspring":         "int8",
	"cron_enter":        "text timestamptz timestamptz",
	"cron_fire":         "bool int8",
	"cron_pass":         "",
	"count_queue":       "int8 int8 int8 int8 int8 int8 timestamptz timestamptz",
	"count_queues":      "text",
	"joint_guard":       "text text",
	"joint_fate":        "bool",
	"joint_top":         "bool",
	"retry_lock":        "int8",
	"retry_parent":      "",
	"retry":             "text",
	"occupant":          "text int8",
	"queue_pause":       "timestamptz",
	"queue_resume":      "",
	"queue_paused":      "text timestamptz",

	"limit_config_get":    "text text float8 float8 int2",
	"limit_config_put":    "",
	"limit_config_remove": "",
}

// documented finds "$1 bigint[] ..." in a file's header.
var documented = regexp.MustCompile(`\$(\d+),? (?:and )?([a-z0-9]+(?:\[\])?)`)

// typeNames are the catalogue's names of types that the headers call otherwise.
var typeNames = map[string]string{"bigint": "int8", "int": "int4", "smallint": "int2", "boolean": "bool"}

// knownTypes tell a parameter's type from other words that may follow its number in a comment.
var knownTypes = []string{"int8", "int4", "int2", "bool", "text", "jsonb", "float8", "timestamptz",
	"int8[]", "int4[]", "int2[]", "bool[]", "text[]", "jsonb[]", "float8[]", "timestamptz[]"}

// TestStatements prepares every file and holds its parameters against its header, and its columns against what the Go
// side reads.
func TestStatements(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	name := func(oid uint32) string {
		typ, ok := conn.Conn().TypeMap().TypeForOID(oid)
		if !ok {
			return fmt.Sprint("oid ", oid)
		}
		if rest, array := strings.CutPrefix(typ.Name, "_"); array {
			return rest + "[]"
		}
		return typ.Name
	}
	files, err := fs.Glob(statementFiles, "sql/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(s.text) {
		t.Errorf("%d files, %d texts", len(files), len(s.text))
	}
	for _, file := range files {
		stem := strings.TrimSuffix(strings.TrimPrefix(file, "sql/"), ".sql")
		text := s.sql(stem)
		if !strings.HasPrefix(text, "/* gendurable:"+stem+" */ ") || strings.Contains(text, "--") || strings.Contains(text, "public.gen") {
			t.Errorf("%s was loaded as %q", file, text)
		}
		sd, err := conn.Conn().Prepare(ctx, "check "+stem, text)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		raw, err := statementFiles.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		header := headerTypes(string(raw))
		for i, oid := range sd.ParamOIDs {
			if want := header[fmt.Sprint(i+1)]; want != "" && want != name(oid) || strings.HasPrefix(name(oid), "oid ") {
				t.Errorf("%s: $%d is %s, its header says %q", file, i+1, name(oid), want)
			}
		}
		if want, ok := columnTypes[stem]; ok {
			var got []string
			for _, f := range sd.Fields {
				got = append(got, name(f.DataTypeOID))
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s returns %s, the Go side reads %s", file, strings.Join(got, " "), want)
			}
		}
	}
	for stem := range columnTypes {
		s.sql(stem) // panics when there is no such file
	}
}

// headerTypes are the types of the parameters by the comments at the top of a file, by the parameters' numbers.
func headerTypes(file string) map[string]string {
	types := map[string]string{}
	for line := range strings.Lines(file) {
		comment, ok := strings.CutPrefix(line, "-- ")
		if !ok {
			break
		}
		for _, m := range documented.FindAllStringSubmatch(comment, -1) {
			base, array := strings.CutSuffix(m[2], "[]")
			if name, ok := typeNames[base]; ok {
				base = name
			}
			if array {
				base += "[]"
			}
			if _, ok := types[m[1]]; !ok && slices.Contains(knownTypes, base) {
				types[m[1]] = base
			}
		}
	}
	return types
}

func TestUnknownStatementPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a statement that does not exist was returned")
		}
	}()
	(&Store{}).sql("nothing")
}

func TestStripComments(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"-- head\nSELECT 1 -- one\n\n  FROM x;\n":              "SELECT 1\n  FROM x",
		"SELECT '--' -- two\n":                                 "SELECT '--'",
		"SELECT \"a--b\", 'it''s -- in' -- it's\nFROM \"--\" ": "SELECT \"a--b\", 'it''s -- in'\nFROM \"--\"",
	} {
		if got := stripComments(text); got != want {
			t.Errorf("%q became %q, expected %q", text, got, want)
		}
	}
}

// tripCounter counts how often a connection turns from sending to waiting for the answer.
type tripCounter struct {
	mu    sync.Mutex
	trips int
}

func (c *tripCounter) take() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.trips
	c.trips = 0
	return n
}

// countedConn counts a round trip for each answer that is waited for after something was sent.
type countedConn struct {
	net.Conn
	counter *tripCounter
	sent    bool // Invariant: guarded by counter.mu
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.counter.mu.Lock()
	c.sent = true
	c.counter.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.counter.mu.Lock()
	defer c.counter.mu.Unlock()
	if c.sent && n > 0 {
		c.sent = false
		c.counter.trips++
	}
	return n, err
}

// counted returns the Store on a single connection whose round trips are counted.
func counted(t testing.TB, s *Store) (*Store, *tripCounter) {
	t.Helper()
	counter := &tripCounter{}
	cfg := s.pool.Config()
	cfg.MaxConns = 1
	// The pool would test a connection that was idle for a second before it hands it out.
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: conn, counter: counter}, nil
	}
	pool, err := pgxpool.NewWithConfig(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	own := *s
	own.pool = pool
	return &own, counter
}

// TestRoundTrips names each statement with the round trips it takes once it is prepared.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	s, trips := counted(t, open(t))
	ctx := testContext(t)
	put(t, s, 1)
	keys := 0
	fresh := func(n int) []Insertion {
		rows := make([]Insertion, n)
		for i := range rows {
			keys++
			rows[i] = keyed(fmt.Sprint("key", keys))
			rows[i].RequestID = fmt.Sprint("request", keys)
		}
		return rows
	}
	occupied := fresh(1)
	insert(t, s, s.pool, occupied...)
	duplicate := keyed(occupied[0].CorrelationKey)
	many := make([]Insertion, 1000)
	for i := range many {
		many[i] = plain("m")
	}
	target := put(t, s, 1)[0]
	var deliveries []Delivery
	for i := range 500 {
		deliveries = append(deliveries, Delivery{ID: target, Name: "n", DedupKey: fmt.Sprint(i)})
	}
	node := named(inc1)
	for _, c := range []struct {
		name string
		want int
		do   func() error
	}{
		{"insert one", 1, func() error { _, err := s.Insert(ctx, s.pool, many[:1]); return err }},
		{"insert many", 1, func() error { _, err := s.Insert(ctx, s.pool, many); return err }},
		{"insert with keys and requests", 1, func() error { _, err := s.Insert(ctx, s.pool, fresh(1000)); return err }},
		{"insert a duplicate", 1, func() error { _, err := s.Insert(ctx, s.pool, []Insertion{duplicate}); return err }},
		{"insert a repeat", 1, func() error { _, err := s.Insert(ctx, s.pool, occupied); return err }},
		{"signal one", 1, func() error { _, err := s.Signal(ctx, s.pool, deliveries[:1]); return err }},
		{"signal many", 1, func() error { _, err := s.Signal(ctx, s.pool, deliveries); return err }},
		{"get", 1, func() error { _, err := s.Get(ctx, s.pool, target); return err }},
		{"get by key", 1, func() error { _, err := s.GetByKey(ctx, s.pool, duplicate.CorrelationKey); return err }},
		{"cancel", 1, func() error {
			_, err := s.Cancel(ctx, s.pool, put(t, s, 1)[0], "r")
			trips.mu.Lock()
			trips.trips--
			trips.mu.Unlock()
			return err
		}},
		{"cancel what has ended", 2, func() error {
			exec(t, s, `UPDATE gen_durable SET status = 'done' WHERE id = $1`, target)
			trips.take()
			_, err := s.Cancel(ctx, s.pool, target, "r")
			return err
		}},
		{"settled", 1, func() error { _, err := s.Settled(ctx, []int64{target, 1, 2}); return err }},
		{"inbox page", 1, func() error { _, err := s.InboxPage(ctx, target, nil, 10); return err }},
		{"children page", 1, func() error { _, err := s.ChildrenPage(ctx, target, 0, 10); return err }},
		{"collect", 1, func() error { _, _, err := s.CollectTerminal(ctx, 0, 0, Position{}, 10); return err }},
		{"collect side tables", 4, func() error { _, err := s.CollectSideTables(ctx, 10); return err }},
		{"vacuum statistics", 1, func() error { _, err := s.VacuumStats(ctx); return err }},
		{"vacuum", 1, func() error { return s.Vacuum(ctx) }},
		{"beat", 1, func() error { _, err := s.BeatNode(ctx, node); return err }},
		{"reclaim", 1, func() error { _, _, err := s.ReclaimStale(ctx, "e", "n", inc1, time.Minute, time.Second); return err }},
		{"remove", 1, func() error { return s.RemoveNode(ctx, node) }},
	} {
		var got int
		for range 2 { // the first run prepares
			trips.take()
			if err := c.do(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			got = trips.take()
		}
		if got != c.want {
			t.Errorf("%s took %d round trips, expected %d", c.name, got, c.want)
		}
	}
}
