package cluster

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// TestOwnersAreEven spreads lanes over addresses that differ in a digit.
func TestOwnersAreEven(t *testing.T) {
	t.Parallel()
	addresses := []string{"10.0.0.1:8090", "10.0.0.2:8090", "10.0.0.3:8090"}
	n := map[string]int{}
	for i := range 3000 {
		n[owner(laneName("orders", i), addresses)]++
	}
	for _, a := range addresses {
		if n[a] < 900 || n[a] > 1100 {
			t.Errorf("%s has %d of 3000 lanes", a, n[a])
		}
	}
	if got := owner("q#0", nil); got != "" {
		t.Errorf("a lane without nodes belongs to %q", got)
	}
}

// TestOwnersMoveOnlyWithTheirNode holds the property that makes rendezvous hashing worth it, for any fleet. 100 cases, some
// milliseconds.
func TestOwnersMoveOnlyWithTheirNode(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		addresses := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,4}:[0-9]{1,4}`), 2, 9, rapid.ID[string]).Draw(t, "addresses")
		lane := rapid.String().Draw(t, "lane")
		before := owner(lane, addresses)
		gone := rapid.SampledFrom(addresses).Draw(t, "gone")
		rest := slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return a == gone })
		slices.Reverse(rest)
		if after := owner(lane, rest); before != gone && after != before {
			t.Fatalf("%q moved from %q to %q when %q left", lane, before, after, gone)
		}
	})
}

func TestLaneNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "q", "q#", "q#x", "q#-1", sweeper("q")} {
		if q, n, ok := laneOf(name); ok {
			t.Errorf("%q is lane %d of %q", name, n, q)
		}
	}
	if q, n, ok := laneOf(laneName("a#1", 12)); !ok || q != "a#1" || n != 12 {
		t.Errorf("got %q, %d, %v", q, n, ok)
	}
}

const ttl = 10 * time.Second

// fleet plays the seatings of several nodes against a table of rows, as the database would hold them.
type fleet struct {
	now   time.Time
	nodes map[string]*seating
	held  map[string][]string // what each node's row says it serves
	// cut are nodes that reach the database no more, apart the nodes that a provider has lost.
	cut, apart map[string]bool
}

func newFleet(lanes int, addresses ...string) *fleet {
	f := &fleet{now: time.Unix(1000, 0), nodes: map[string]*seating{}, held: map[string][]string{}, cut: map[string]bool{}, apart: map[string]bool{}}
	for _, a := range addresses {
		f.nodes[a] = newSeating(a, map[string]int{"q": lanes}, ttl, f.now)
	}
	return f
}

// second lets a second pass: every node reads, decides and does at once what it decided.
func (f *fleet) second() {
	f.now = f.now.Add(time.Second)
	var members []string
	for a := range f.nodes {
		if !f.cut[a] && !f.apart[a] {
			members = append(members, a)
		}
	}
	for a, s := range f.nodes {
		if f.cut[a] {
			continue
		}
		var rows []pg.Member
		for b, other := range f.nodes {
			if !f.cut[b] {
				rows = append(rows, pg.Member{Own: a == b, Address: b, Seats: other.seats(), Lanes: f.held[b]})
			}
		}
		if f.apart[a] {
			s.topology([]string{a})
		} else {
			s.topology(members)
		}
		s.read(rows, f.now)
		for queue, serve := range s.decide(f.now) {
			f.held[a] = nil
			for _, n := range serve.Lanes {
				f.held[a] = append(f.held[a], laneName(queue, n))
			}
		}
	}
}

func (s *seating) seats() map[string]int {
	if s.resigned {
		return nil
	}
	return s.queues
}

// owners is who serves each lane.
func (f *fleet) owners() map[string][]string {
	out := map[string][]string{}
	for a, lanes := range f.held {
		for _, lane := range lanes {
			out[lane] = append(out[lane], a)
		}
	}
	return out
}

// want checks that each of the lanes is served once, by one of the nodes.
func (f *fleet) want(t *testing.T, when string, lanes int, nodes ...string) {
	t.Helper()
	got := f.owners()
	if len(got) != lanes {
		t.Errorf("%s: %d lanes are served, want %d", when, len(got), lanes)
	}
	for lane, by := range got {
		if len(by) != 1 || !slices.Contains(nodes, by[0]) {
			t.Errorf("%s: %s is served by %v", when, lane, by)
		}
	}
}

func (f *fleet) seconds(n int) {
	for range n {
		f.second()
	}
}

func TestLanesFollowTheNodes(t *testing.T) {
	t.Parallel()
	f := newFleet(12, "a:1", "b:1", "c:1")
	f.seconds(3)
	f.want(t, "at first", 12, "a:1", "b:1", "c:1")
	before := f.owners()

	delete(f.nodes, "b:1")
	delete(f.held, "b:1")
	f.seconds(2)
	f.want(t, "after b died", 12, "a:1", "c:1")
	for lane, by := range before {
		if by[0] != "b:1" && f.owners()[lane][0] != by[0] {
			t.Errorf("%s moved although its node lives", lane)
		}
	}
	f.nodes["b:1"] = newSeating("b:1", map[string]int{"q": 12}, ttl, f.now)
	f.seconds(3)
	f.want(t, "after b came back", 12, "a:1", "b:1", "c:1")
	if !maps.EqualFunc(before, f.owners(), slices.Equal) {
		t.Errorf("b came back, and the lanes are elsewhere: %v, before %v", f.owners(), before)
	}
	f.nodes["c:1"].resigned = true
	f.held["c:1"] = nil // it drained
	f.seconds(2)
	f.want(t, "after c resigned", 12, "a:1", "b:1")
}

// TestNodesWithFewerLanes plays a deploy that changes the number of lanes: a node is given no lane that it does not know.
func TestNodesWithFewerLanes(t *testing.T) {
	t.Parallel()
	f := newFleet(2, "a:1", "b:1")
	f.nodes["c:1"] = newSeating("c:1", map[string]int{"q": 6}, ttl, f.now)
	f.seconds(3)
	f.want(t, "with an old version", 6, "a:1", "b:1", "c:1")
	for lane, by := range f.owners() {
		if _, n, _ := laneOf(lane); n >= 2 && by[0] != "c:1" {
			t.Errorf("%s went to %s, which has two lanes", lane, by[0])
		}
	}
}

// TestALaneWaitsForItsLastOwner, but not for ever.
func TestALaneWaitsForItsLastOwner(t *testing.T) {
	t.Parallel()
	f := newFleet(1, "a:1", "b:1")
	owner := owner("q#0", []string{"a:1", "b:1"})
	other := map[string]string{"a:1": "b:1", "b:1": "a:1"}[owner]
	s := f.nodes[owner]
	s.topology([]string{"a:1", "b:1"})
	rows := []pg.Member{
		{Own: true, Address: owner, Seats: map[string]int{"q": 1}},
		{Address: other, Seats: map[string]int{"q": 1}, Lanes: []string{"q#0"}},
	}
	for i := range 11 {
		s.read(rows, f.now.Add(time.Duration(i)*time.Second))
		if got := s.decide(f.now.Add(time.Duration(i) * time.Second)); len(got["q"].Lanes) != 0 {
			t.Fatalf("after %d s it took the lane that %s still holds: %v", i, other, got)
		}
	}
	if got := s.decide(f.now.Add(12 * time.Second)); !slices.Equal(got["q"].Lanes, []int{0}) {
		t.Errorf("after a TTL it still waits: %v", got)
	}
}

// TestSweepWhenNoLaneBeats: the owner belongs to the cluster, but nothing of it beats; and nobody ever joins.
func TestSweepWhenNoLaneBeats(t *testing.T) {
	t.Parallel()
	s := newSeating("b:1", map[string]int{"q": 1}, ttl, time.Unix(0, 0))
	at := func(seconds int) map[string]Serve { return s.decide(time.Unix(int64(seconds), 0)) }
	if got := at(9); len(got) != 0 {
		t.Errorf("before a TTL: %v", got)
	}
	if got := at(11); !got["q"].Sweep || len(got["q"].Lanes) != 0 {
		t.Errorf("a queue that nobody serves is left alone: %v", got)
	}
	if got := at(12); len(got) != 0 {
		t.Errorf("told twice: %v", got)
	}
	s.read([]pg.Member{{Address: "a:1", Lanes: []string{"q#0"}}}, time.Unix(13, 0))
	if got, told := at(13)["q"]; !told || got.Sweep {
		t.Errorf("a lane beats, and the sweep goes on: %v", got)
	}
	if got := at(24); !got["q"].Sweep {
		t.Errorf("the lane beats no more: %v", got)
	}
}

// TestASplitIsNoticedAndHealed by a new membership, and a node without a topology keeps its lanes meanwhile.
func TestASplitIsNoticedAndHealed(t *testing.T) {
	t.Parallel()
	f := newFleet(6, "a:1", "b:1", "c:1")
	f.seconds(3)
	f.apart["a:1"] = true
	f.seconds(25)
	lost := 0
	for _, s := range f.nodes {
		if s.lost(f.now) {
			lost++
			s.rejoined()
			if got := s.decide(f.now); len(got) != 0 {
				t.Errorf("without a topology it changed %v", got)
			}
		}
	}
	if lost == 0 {
		t.Error("nobody noticed that the members are apart")
	}
	delete(f.apart, "a:1")
	f.seconds(15)
	f.want(t, "after the split", 6, "a:1", "b:1", "c:1")
	for a, s := range f.nodes {
		if s.lost(f.now) {
			t.Errorf("%s believes to be lost", a)
		}
	}
}

// TestMembershipsThatDoNotHold are given up after ever longer times; one that held makes them short again, one that held for a
// moment does not.
func TestMembershipsThatDoNotHold(t *testing.T) {
	t.Parallel()
	s := newSeating("a:1", map[string]int{"q": 1}, ttl, time.Unix(0, 0))
	r := &rejoins{again: actors.Backoff{First: 2 * ttl, Max: 60 * ttl}}
	now := time.Unix(0, 0)
	rows := []pg.Member{{Own: true, Address: "a:1"}, {Address: "b:1"}}
	apart, together := []string{"a:1"}, []string{"a:1", "b:1"}
	// live lets seconds pass in a topology, and returns after how many the membership is given up.
	live := func(members []string, seconds int) (after int) {
		s.topology(members)
		for i := range seconds {
			now = now.Add(time.Second)
			s.read(rows, now)
			if r.due(s, now) {
				s.rejoined()
				return i + 1
			}
		}
		return 0
	}
	const forever = 1000
	for i, want := range []int{22, 22, 41, 81} { // 2 TTLs apart, and not before the last pause is over: 20, 20, 40, 80 s
		if got := live(apart, forever); got != want {
			t.Errorf("membership %d was given up after %d s, want %d", i, got, want)
		}
	}
	if got := live(together, 100); got != 0 { // the pause is 160 s
		t.Errorf("nodes agree, and the membership was given up after %d s", got)
	}
	if got := live(apart, forever); got != 61 {
		t.Errorf("after one that held for less than the pause, it was given up after %d s, want 61", got)
	}
	if got := live(together, 400); got != 0 { // the pause is 320 s
		t.Errorf("nodes agree, and the membership was given up after %d s", got)
	}
	for i := range 2 {
		if got := live(apart, forever); got != 22 {
			t.Errorf("membership %d after one that held was given up after %d s, want 22", i, got)
		}
	}
}

// TestAPlacerThatWasRestartedKeepsTheLanes adopts what is served.
func TestAPlacerThatWasRestartedKeepsTheLanes(t *testing.T) {
	t.Parallel()
	s := newSeating("a:1", map[string]int{"q": 3}, ttl, time.Unix(0, 0))
	s.adopt("q", []string{"q#2", "q#0", sweeper("q")})
	s.read([]pg.Member{{Own: true, Address: "a:1", Seats: map[string]int{"q": 3}, Lanes: []string{"q#0", "q#2"}}}, time.Unix(1, 0))
	if got := s.decide(time.Unix(1, 0)); len(got) != 0 {
		t.Errorf("without a topology: %v", got)
	}
	s.topology([]string{"a:1"})
	if got := fmt.Sprint(s.decide(time.Unix(2, 0))["q"].Lanes); got != "[0 1 2]" {
		t.Errorf("alone in the cluster it serves %s", got)
	}
	// Another one finds all lanes held. It says so once: its predecessor may have wanted something else at last.
	s = newSeating("a:1", map[string]int{"q": 1}, ttl, time.Unix(0, 0))
	s.adopt("q", []string{"q#0"})
	s.topology([]string{"a:1"})
	s.read([]pg.Member{{Own: true, Address: "a:1", Seats: map[string]int{"q": 1}, Lanes: []string{"q#0"}}}, time.Unix(1, 0))
	if got := fmt.Sprint(s.decide(time.Unix(1, 0))); got != "map[q:{{} [0] false}]" {
		t.Errorf("at first it says %s", got)
	}
	if got := s.decide(time.Unix(2, 0)); len(got) != 0 {
		t.Errorf("it says again %v", got)
	}
}
