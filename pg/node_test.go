package pg

import (
	"slices"
	"testing"
	"time"
)

const (
	// So long that a test is not over the edge before it has come to it.
	testLease, testHeartbeat = time.Hour, 20 * time.Minute

	inc1, inc2, inc3 = "00000000000000a1", "00000000000000a2", "00000000000000a3"
)

// hold inserts an executing row per claim identity, whose lease was last extended so long ago.
func hold(t *testing.T, s *Store, age time.Duration, workers ...string) []int64 {
	t.Helper()
	ids := put(t, s, len(workers), func(i *Insertion) { i.Queue = "held" })
	for i, id := range ids {
		exec(t, s, `UPDATE gen_durable SET status = 'executing', locked_by = $2, lease_expires_at = now() + $3 * interval '1 microsecond' WHERE id = $1`,
			id, workers[i], (testLease - age).Microseconds())
	}
	return ids
}

func register(t *testing.T, s *Store, n Node) RegisterResult {
	t.Helper()
	r, err := s.RegisterNode(testContext(t), n, testLease, testHeartbeat)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func named(incarnation string) Node {
	return Node{Engine: "e", Name: "web", Incarnation: incarnation, Named: true, Address: "10.0.0.1:80", Queues: []string{"q"}, Machines: []string{"m/1"}}
}

func beat(t *testing.T, s *Store, n Node) string {
	t.Helper()
	by, err := s.BeatNode(testContext(t), n)
	if err != nil {
		t.Fatal(err)
	}
	return by
}

func TestNamedNodeReplacesItsPredecessor(t *testing.T) {
	t.Parallel()
	s := open(t)
	if r := register(t, s, named(inc1)); r.Replaced != "" || r.Reclaimed != 0 {
		t.Errorf("the first: %+v", r)
	}
	fresh := hold(t, s, 0, "e:q@web-"+inc1, "e:mail/3@web-"+inc1, "e:q@web-"+inc3)
	if r := register(t, s, named(inc1)); r.Replaced != "" || r.Reclaimed != 0 {
		t.Errorf("the same again: %+v", r)
	}
	r := register(t, s, named(inc2))
	if r.Replaced != inc1 || r.Reclaimed != 2 || !slices.Equal(r.Queues, []string{"held"}) {
		t.Errorf("the successor: %+v", r)
	}
	// The third incarnation's row says nothing of it: it may be an unnamed process on a host of that name.
	wantStatus(t, s, Runnable, fresh[:2]...)
	wantStatus(t, s, Executing, fresh[2])
	if got := get(t, s, fresh[0]); got.Attempt != 1 || got.Crashes != 1 || got.LockedBy != "" || got.LeaseExpiresAt != nil {
		t.Errorf("a reclaimed row: %+v", *got)
	}
	if by := beat(t, s, named(inc1)); by != inc2 {
		t.Errorf("the predecessor sees %q in its place, expected %q", by, inc2)
	}
	if by := beat(t, s, named(inc2)); by != "" {
		t.Errorf("the successor sees %q in its place", by)
	}
	if err := s.RemoveNode(testContext(t), named(inc1)); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable_nodes`); n != 1 {
		t.Error("the predecessor removed its successor's row")
	}
	if err := s.RemoveNode(testContext(t), named(inc2)); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable_nodes`); n != 0 {
		t.Error("the node's row is still there")
	}
	if by := beat(t, s, named(inc2)); by != "" {
		t.Errorf("a beat after the row was swept: %q", by)
	}
	if !value[bool](t, s, `SELECT named AND address = '10.0.0.1:80' AND queues = '{q}' AND machines = '{m/1}' FROM gen_durable_nodes`) {
		t.Error("the beat did not write the whole row")
	}
}

func TestUnnamedNodesShareAHostName(t *testing.T) {
	t.Parallel()
	s := open(t)
	node := func(inc string) Node { return Node{Engine: "e", Name: "host", Incarnation: inc} }
	if r := register(t, s, node(inc1)); r.Replaced != "" {
		t.Errorf("the first: %+v", r)
	}
	live := hold(t, s, 39*time.Minute, "e:q@host-"+inc1, "e:a:b@host-"+inc3)
	// Nor at its start what looks stale: after an outage of the database the leases of live siblings do, too.
	outage := hold(t, s, 50*time.Minute, "e:q@host-"+inc1)
	if r := register(t, s, node(inc2)); r.Replaced != "" || r.Reclaimed != 0 {
		t.Errorf("a sibling with the same name took live work: %+v", r)
	}
	wantStatus(t, s, Executing, outage...)
	exec(t, s, `UPDATE gen_durable SET lease_expires_at = now() + interval '50 minutes' WHERE id = $1`, outage[0]) // it beats again
	wantStatus(t, s, Executing, live...)
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable_nodes`); n != 2 {
		t.Errorf("%d rows of nodes, expected one for each process", n)
	}
	stale := hold(t, s, 41*time.Minute, "e:q@host-"+inc1, "e:a:b@host-"+inc3)
	mine := hold(t, s, 41*time.Minute, "e:q@host-"+inc2)
	n, queues, err := s.ReclaimStale(testContext(t), "e", "host", inc2, testLease, testHeartbeat)
	if err != nil || n != 2 || !slices.Equal(queues, []string{"held"}) {
		t.Errorf("two missed beats: %d, %v, %v", n, queues, err)
	}
	wantStatus(t, s, Runnable, stale...)
	wantStatus(t, s, Executing, mine...)
	if n, _, err := s.ReclaimStale(testContext(t), "e", "host", inc2, testLease, testHeartbeat); err != nil || n != 0 {
		t.Errorf("again: %d, %v", n, err)
	}
}

func TestReclaimTakesIdentitiesApart(t *testing.T) {
	t.Parallel()
	s := open(t)
	others := hold(t, s, time.Hour,
		"e:q@a-b-"+inc1, "e:q@ab-"+inc1, "e2:q@a-"+inc1, "e:q@b@a-"+inc1, "e:q@a-"+inc1+"0", "e:q@a-"+inc1[1:], "e:q@a"+inc1,
		"e:q@a-00000000000000AG", "e:q@a-", "e", "GenDurable:q@a-#PID<0.1.0>", "e:q@A-"+inc1, "e:q@a%-"+inc1, "e:q@_-"+inc1)
	reclaim := func(node string) int {
		n, _, err := s.ReclaimStale(testContext(t), "e", node, inc2, testLease, testHeartbeat)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	if n := reclaim("a"); n != 0 {
		t.Errorf("%d claims of others were reclaimed", n)
	}
	wantStatus(t, s, Executing, others...)
	long := hold(t, s, time.Hour, "e:q@a-b-"+inc1)
	if n := reclaim("a-b"); n != 2 {
		t.Errorf("the node with a dash got back %d claims, expected both of its own", n)
	}
	wantStatus(t, s, Runnable, long...)
}

func TestReclaimCountsCrashesByStep(t *testing.T) {
	t.Parallel()
	s := open(t)
	id := hold(t, s, time.Hour, "e:q@web-"+inc1)[0]
	for want := 1; want <= 3; want++ {
		register(t, s, named(inc2))
		if got := get(t, s, id); got.Crashes != want || got.Attempt != want {
			t.Errorf("crash %d: %+v", want, *got)
		}
		exec(t, s, `UPDATE gen_durable SET status = 'executing', locked_by = 'e:q@web-' || $2::text, lease_expires_at = now() WHERE id = $1`, id, inc1)
	}
	exec(t, s, `UPDATE gen_durable SET step = 'other' WHERE id = $1`, id)
	register(t, s, named(inc2))
	if got := get(t, s, id); got.Crashes != 1 || got.Attempt != 4 {
		t.Errorf("another step starts again: %+v", *got)
	}
}

func TestReclaimPassesOverLockedRows(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	ids := hold(t, s, time.Hour, "e:q@web-"+inc1, "e:q@web-"+inc1)
	tx, err := host.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := s.Signal(ctx, tx, []Delivery{{ID: ids[0], Name: "n"}}); err != nil {
		t.Fatal(err)
	}
	if r := register(t, s, named(inc2)); r.Reclaimed != 1 {
		t.Errorf("%+v, expected the row that nobody holds", r)
	}
	wantStatus(t, s, Runnable, ids[1])
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if n, _, err := s.ReclaimStale(ctx, "e", "web", inc2, testLease, testHeartbeat); err != nil || n != 1 {
		t.Errorf("at the next beat: %d, %v", n, err)
	}
}

// A stop that leaves a claim behind must leave the row, too: the next start under the name finds the claim by it.
func TestANodeThatStillHoldsRowsStays(t *testing.T) {
	t.Parallel()
	s := open(t)
	n := Node{Engine: "e", Name: "n", Incarnation: inc1, Named: true}
	register(t, s, n)
	held := hold(t, s, 0, "e:q@n-"+inc1, "e:q@n-"+inc2)
	rows := func() int { return value[int](t, s, `SELECT count(*)::int FROM gen_durable_nodes`) }
	if err := s.RemoveNode(testContext(t), n); err != nil || rows() != 1 {
		t.Errorf("%d rows of nodes, %v: the node still holds a row", rows(), err)
	}
	exec(t, s, `UPDATE gen_durable SET status = 'runnable', locked_by = NULL WHERE id = $1`, held[0])
	if err := s.RemoveNode(testContext(t), n); err != nil || rows() != 0 {
		t.Errorf("%d rows of nodes, %v: only another incarnation holds a row", rows(), err)
	}
}
