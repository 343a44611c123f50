package pg

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/internal/devpg"
)

// walOf reads what was written since a position: how many records of each kind. What a server does by itself (running
// transactions, pruning of pages, which moves what is there) is left out: nobody asked for it.
func walOf(t *testing.T, s *Store, from string) map[string]int {
	t.Helper()
	exec(t, s, `SELECT pg_logical_emit_message(true, 'mark', '')`) // flushes what is there; its own commit is left out below
	rows, err := s.pool.Query(testContext(t), `
		SELECT "resource_manager/record_type", count FROM pg_get_wal_stats($1::pg_lsn, pg_current_wal_insert_lsn(), true) WHERE count > 0`, from)
	if err != nil {
		t.Fatal(err)
	}
	wrote := map[string]int{}
	var kind string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&kind, &n}, func() error {
		manager, _, _ := strings.Cut(kind, "/")
		switch {
		case manager == "Heap" || manager == "Btree" && strings.Contains(kind, "INSERT"):
			wrote[strings.ReplaceAll(strings.TrimSuffix(strings.TrimSuffix(kind, "+INIT"), " "), "INSERT_UPPER", "INSERT_LEAF")] += n
		case strings.HasPrefix(kind, "Transaction/COMMIT"):
			wrote["commits"] += n
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wrote["commits"]--
	maps.DeleteFunc(wrote, func(_ string, n int) bool { return n == 0 })
	return wrote
}

// TestWhatTheHotPathsWrite counts the records in the WAL, exactly where the engine decides and by a bound where Postgres
// does: how many rows are written and index entries made, and that a batch is one commit. A record is what a row costs; a
// statement that begins to write a row twice, to lock it by a write of its own, or to break a HOT update, shows here.
func TestWhatTheHotPathsWrite(t *testing.T) {
	t.Parallel()
	server := devpg.ServerFor(t, devpg.Options{Settings: map[string]string{
		"autovacuum": "off", "full_page_writes": "off", "checkpoint_timeout": "1h", "max_wal_size": "4GB",
	}})
	ctx := testContext(t)
	host, err := pgxpool.New(ctx, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	if err := Migrate(ctx, host); err != nil {
		t.Fatal(err)
	}
	pool, err := EnginePool(ctx, host, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := Open(ctx, pool, Options{})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, s, `CREATE EXTENSION pg_walinspect`)
	c := s.NewCommitter("wal")
	const n = 100
	// writes checks one operation on n rows. rows are the records on the tables for each of them, at most; extra is how
	// many others there may be; entries is how many index entries all of them make, but for a few when pages are split.
	writes := func(what string, do func(), entries int, extra int, rows map[string]int) {
		t.Helper()
		from := value[string](t, s, `SELECT pg_current_wal_insert_lsn()::text`)
		do()
		got := walOf(t, s, from)
		if got["commits"] != 1 {
			t.Errorf("%s: %d commits", what, got["commits"])
		}
		written := 0
		for kind, count := range got {
			if strings.HasPrefix(kind, "Heap/") {
				written += count
				if rows[kind] == 0 && count > extra {
					t.Errorf("%s: %d × %s", what, count, kind)
				}
			}
		}
		most := extra
		for _, each := range rows {
			most += each * n
		}
		if written > most {
			t.Errorf("%s: %d records on tables, at most %d are expected", what, written, most)
		}
		if got["Btree/INSERT_LEAF"] > entries+n/5 {
			t.Errorf("%s: %d index entries, expected %d", what, got["Btree/INSERT_LEAF"], entries)
		}
	}
	var rows []Claimed
	one := func(kind Kind, change ...func(*Outcome)) func() {
		return func() {
			var all []Outcome
			for _, row := range rows {
				o := outcome(row, alice, kind)
				for _, f := range change {
					f(&o)
				}
				all = append(all, o)
			}
			commitAll(t, c, all...)
		}
	}
	take := func() { rows = claim(t, s, alice, n) }
	put(t, s, 1)
	commitAll(t, c, outcome(claimOne(t, s, alice), alice, KindDone)) // the flusher's own row is there now
	// An update whose new version has no room in the page of the old one locks the old one while it looks for another:
	// up to one lock more, for Postgres to decide.
	claimed := map[string]int{"Heap/LOCK": 2, "Heap/UPDATE": 1}
	writes("insert", func() { put(t, s, n) }, 2*n, 0, map[string]int{"Heap/INSERT": 1})
	writes("claim", take, 2*n, 0, claimed)
	exec(t, s, `VACUUM gen_durable`) // as it is in the long run: there is room for HOT updates
	// A HOT update wherever the page has room, which the fillfactor leaves for more than half of the first continuations.
	writes("continue", one(KindContinue), n, 3, map[string]int{"Heap/HOT_UPDATE": 1, "Heap/UPDATE": 1, "Heap/LOCK": 1})
	writes("next", one(KindNext), 2*n, 3, map[string]int{"Heap/UPDATE": 1, "Heap/LOCK": 1})
	take()
	writes("retry", one(KindRetry), 2*n, 3, map[string]int{"Heap/UPDATE": 1, "Heap/LOCK": 1})
	take()
	writes("done", one(KindDone), 2*n, 3, map[string]int{"Heap/UPDATE": 1, "Heap/LOCK": 1})
	put(t, s, n)
	take()
	writes("heartbeat", func() {
		ids := make([]int64, len(rows))
		for i, row := range rows {
			ids[i] = row.ID
		}
		if _, err := s.Heartbeat(ctx, alice, time.Hour, ids); err != nil {
			t.Fatal(err)
		}
	}, 2*n, 0, claimed)
	from := value[string](t, s, `SELECT pg_current_wal_insert_lsn()::text`)
	claim(t, s, alice, n)
	if got := walOf(t, s, from); len(got) > 0 {
		t.Errorf("a claim that finds nothing writes %s", describe(got))
	}
}

func describe(wrote map[string]int) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(wrote)) {
		parts = append(parts, fmt.Sprintf("%d × %s", wrote[kind], kind))
	}
	return strings.Join(parts, ", ")
}
