package pg

import (
	"testing"
	"time"
)

// TestCopyIsInsert: what is copied is what Insert would have made, for each set of columns.
func TestCopyIsInsert(t *testing.T) {
	t.Parallel()
	s := open(t)
	at := time.Now().Add(48 * time.Hour).Truncate(time.Microsecond)
	bareRow := Insertion{Machine: "m", Version: 3, Step: "a", State: []byte(`{"n": 1}`), Queue: "q", Priority: -7}
	limited, timed, delayed, all := bareRow, bareRow, bareRow, bareRow
	limited.ConcurrencyKey, limited.RateLimit, limited.Weight = "k", "r:p", 2.5
	timed.EligibleAt = at
	delayed.Delay = time.Hour
	all.ConcurrencyKey, all.EligibleAt, all.State = "k", at, nil
	traced := bareRow
	traced.TraceContext = "trace"
	with := func(change func(*Insertion)) []Insertion {
		changed := bareRow
		change(&changed)
		return []Insertion{bareRow, changed, bareRow}
	}
	for name, rows := range map[string][]Insertion{
		"one": {bareRow}, "alike": with(func(i *Insertion) { i.State = []byte(`{"n": 2}`) }), "no state": with(func(i *Insertion) { i.State = nil }),
		"machine": with(func(i *Insertion) { i.Machine = "n" }), "version": with(func(i *Insertion) { i.Version = 4 }),
		"step": with(func(i *Insertion) { i.Step = "b" }), "queue": with(func(i *Insertion) { i.Queue = "r" }),
		"priority": with(func(i *Insertion) { i.Priority = 7 }), "limited": {bareRow, limited}, "timed": {bareRow, timed, delayed}, "all": {all, bareRow, limited, delayed, traced},
		"traced": {bareRow, traced},
	} {
		exec(t, s, `TRUNCATE gen_durable CASCADE`)
		if err := s.Copy(testContext(t), s.pool, rows); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := s.Insert(testContext(t), s.pool, rows); err != nil {
			t.Fatal(err)
		}
		// Whatever differs between the two halves, but ids and times of the insertion. A delay begins a moment apart.
		differ := value[int](t, s, `
			WITH r AS (SELECT row_number() OVER (ORDER BY id) - 1 AS n, to_jsonb(g) - '{id,inserted_at,updated_at,eligible_at}'::text[] AS rest,
			                  g.eligible_at FROM gen_durable g)
			SELECT count(*) FROM r a JOIN r b ON b.n = a.n + $1
			 WHERE a.rest <> b.rest OR abs(extract(epoch FROM a.eligible_at - b.eligible_at)) > 600`, len(rows))
		if n := value[int](t, s, `SELECT count(*) FROM gen_durable`); n != 2*len(rows) || differ != 0 {
			t.Errorf("%s: %d rows, %d of them differ", name, n, differ)
		}
	}
}

func TestCopyIsAllOrNone(t *testing.T) {
	t.Parallel()
	s := open(t)
	good := Insertion{Machine: "m", Version: 1, Step: "a", Queue: "default"}
	bad, keyed, requested := good, good, good
	bad.State, keyed.CorrelationKey, requested.RequestID = []byte(`{"a":`), "k", "r"
	for name, row := range map[string]Insertion{"poison": bad, "a key": keyed, "a request id": requested} {
		if err := s.Copy(testContext(t), s.pool, []Insertion{good, row}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := s.Copy(testContext(t), s.pool, nil); err != nil {
		t.Error(err)
	}
	if n := value[int](t, s, `SELECT count(*) FROM gen_durable`); n != 0 {
		t.Errorf("%d rows are there", n)
	}
}
