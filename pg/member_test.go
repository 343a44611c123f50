package pg

import (
	"errors"
	"testing"
	"time"
)

func beatMember(t *testing.T, s *Store, n Node, b MemberBeat) map[string]Member {
	t.Helper()
	members, err := s.BeatMember(testContext(t), n, b)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]Member, len(members))
	for _, m := range members {
		out[m.Address] = m
	}
	return out
}

func TestMembersSeeEachOther(t *testing.T) {
	t.Parallel()
	s := open(t)
	a, b := Node{Engine: "e", Name: "a", Incarnation: inc1, Queues: []string{"q"}}, Node{Engine: "e", Name: "b", Incarnation: inc2}
	stranger := Node{Engine: "other", Name: "a", Incarnation: inc3}
	for _, n := range []Node{a, b, stranger} {
		register(t, s, n)
	}
	times := MemberBeat{Late: 7 * time.Minute, TTL: 10 * time.Minute} // no pause of the machine is that long
	say := func(id, next, address string, lanes ...string) MemberBeat {
		m := times
		m.ID, m.Next, m.Address, m.Lanes, m.Role, m.Seats = id, next, address, lanes, "worker", map[string]int{"q": 2}
		return m
	}
	beatMember(t, s, stranger, say("s-1", "s-2", "h:9"))
	if got := beatMember(t, s, a, say("a-1", "a-2", "h:1", "q#0")); len(got) != 1 || !got["h:1"].Own || got["h:1"].ID != "a-1" {
		t.Errorf("alone: %+v", got)
	}
	got := beatMember(t, s, b, say("b-1", "b-2", "h:2"))
	if m := got["h:1"]; len(got) != 2 || m.Own || m.ID != "a-1" || m.Lanes[0] != "q#0" || m.Seats["q"] != 2 || m.Queues[0] != "q" || m.Role != "worker" || m.Incarnation != inc1 {
		t.Errorf("two: %+v", got)
	}
	// a is silent for longer than it may: others miss it, and it comes back under its next id.
	exec(t, s, `UPDATE gen_durable_nodes SET member_beat = member_beat - interval '11 minutes' WHERE member = 'a-1'`)
	if got := beatMember(t, s, b, say("b-1", "b-2", "h:2")); len(got) != 1 {
		t.Errorf("a silent member is believed to live: %+v", got)
	}
	if got := beatMember(t, s, a, say("a-1", "a-2", "h:1")); got["h:1"].ID != "a-2" {
		t.Errorf("a member that was silent came back as %+v", got["h:1"])
	}
	if got := beatMember(t, s, a, say("a-2", "a-3", "h:1")); got["h:1"].ID != "a-2" {
		t.Errorf("a member in time took another id: %+v", got["h:1"])
	}
	// The answer to the beat that took a-3 was lost.
	exec(t, s, `UPDATE gen_durable_nodes SET member = 'a-3' WHERE member = 'a-2'`)
	if got := beatMember(t, s, a, say("a-2", "a-3", "h:1")); got["h:1"].ID != "a-3" {
		t.Errorf("a member went back to an id that it had given up: %+v", got["h:1"])
	}
	exec(t, s, `UPDATE gen_durable_nodes SET member = 'a-2' WHERE member = 'a-3'`)
	// A third process has bound the address of the second: only one can live there.
	c := Node{Engine: "e", Name: "c", Incarnation: inc3}
	register(t, s, c)
	beatMember(t, s, c, say("c-1", "c-2", "h:2"))
	if got := beatMember(t, s, a, say("a-2", "a-3", "h:1")); len(got) != 2 || got["h:2"].ID != "c-1" {
		t.Errorf("an address that changed hands: %+v", got)
	}
	if err := s.LeaveMember(testContext(t), c); err != nil {
		t.Fatal(err)
	}
	if err := s.LeaveMember(testContext(t), b); err != nil {
		t.Fatal(err)
	}
	if got := beatMember(t, s, a, say("a-2", "a-3", "h:1")); len(got) != 1 {
		t.Errorf("they left: %+v", got)
	}
	if err := s.RemoveNode(testContext(t), a); err != nil {
		t.Fatal(err)
	}
	if _, err := s.BeatMember(testContext(t), a, say("a-2", "a-3", "h:1")); !errors.Is(err, ErrNoNodeRow) {
		t.Errorf("without a row: %v", err)
	}
}
