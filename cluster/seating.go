package cluster

import (
	"maps"
	"slices"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// seating decides which lanes this node serves. It is a pure function of what was read and when: it knows no actors, no
// database and no clock. Two facts come in: the topology, from whatever provider, says who belongs to the cluster; the rows
// of the nodes say who lives by the database's clock, what each could serve, and what it serves.
//
// Nothing here is needed for safety: two nodes that both believe to own a lane both claim rows, and Postgres decides.
type seating struct {
	self   string         // this node's address
	queues map[string]int // how many lanes each numbered queue of this node has
	ttl    time.Duration
	began  time.Time

	// members are the addresses of the topology; nil before the first.
	members map[string]bool
	rows    []pg.Member

	// granted are the lanes that this node is to serve, by queue; a queue that is not in it was never decided about.
	granted map[string][]int
	// told are the queues that were told what they serve since this seating began.
	told map[string]bool
	// sweeping are the queues that this node serves because nobody else does.
	sweeping map[string]bool
	// beaten is when a lane of a queue was last seen to beat.
	beaten map[string]time.Time
	// waiting is since when a lane that is ours has still been served elsewhere.
	waiting map[string]time.Time
	// astray is since when the topology and the rows have disagreed about who lives; zero = they agree.
	astray time.Time
	// resigned: this node stops, and takes nothing more.
	resigned bool
}

func newSeating(self string, queues map[string]int, ttl time.Duration, now time.Time) *seating {
	return &seating{
		self: self, queues: queues, ttl: ttl, began: now, granted: map[string][]int{}, told: map[string]bool{}, sweeping: map[string]bool{},
		beaten: map[string]time.Time{}, waiting: map[string]time.Time{},
	}
}

// read takes what the database said.
func (s *seating) read(rows []pg.Member, now time.Time) {
	s.rows = rows
	for _, r := range rows {
		for _, name := range r.Lanes {
			if queue, _, ok := laneOf(name); ok {
				s.beaten[queue] = now
			}
		}
	}
	if s.members == nil || s.agree() {
		s.astray = time.Time{}
	} else if s.astray.IsZero() {
		s.astray = now
	}
}

// agree says whether every node that lives belongs to the cluster.
func (s *seating) agree() bool {
	return !slices.ContainsFunc(s.rows, func(r pg.Member) bool { return !s.members[r.Address] })
}

// decide returns what is to change: for some queues, what they are to serve from now on.
func (s *seating) decide(now time.Time) map[string]Serve {
	changes := map[string]Serve{}
	if s.resigned {
		return changes
	}
	for queue, lanes := range s.queues {
		before, known := s.granted[queue]
		after := before
		if s.members[s.self] {
			after = s.lanes(queue, lanes, before, now)
			known = known || len(after) > 0
		}
		// Without a topology that this node is in, it goes on with what it has.
		last := s.beaten[queue]
		if last.IsZero() {
			last = s.began
		}
		sweep := len(after) == 0 && now.Sub(last) > s.ttl
		// Each queue is told once in any case: what an earlier placer said last may be something else, a sweep that nobody
		// needs any more, or a grant that was taken back.
		untold := !s.told[queue] && s.members[s.self] && len(s.rows) > 0
		if untold || !slices.Equal(before, after) || sweep != s.sweeping[queue] {
			changes[queue] = Serve{Lanes: after, Sweep: sweep}
			s.told[queue] = true
		}
		if known {
			s.granted[queue] = after
		}
		s.sweeping[queue] = sweep
	}
	return changes
}

// lanes are those of a queue that this node is to serve.
func (s *seating) lanes(queue string, n int, before []int, now time.Time) []int {
	var out []int
	for i := range n {
		name := laneName(queue, i)
		if owner(name, s.candidates(queue, i)) != s.self {
			delete(s.waiting, name)
			continue
		}
		if slices.Contains(before, i) || s.free(name, now) {
			delete(s.waiting, name)
			out = append(out, i)
		}
	}
	return out
}

// candidates are the members that could serve a lane.
func (s *seating) candidates(queue string, lane int) []string {
	var out []string
	for _, r := range s.rows {
		if s.members[r.Address] && r.Seats[queue] > lane {
			out = append(out, r.Address)
		}
	}
	return out
}

// free says that nobody else serves a lane, or that its last owner has not let go of it for a TTL.
func (s *seating) free(lane string, now time.Time) bool {
	taken := slices.ContainsFunc(s.rows, func(r pg.Member) bool { return !r.Own && slices.Contains(r.Lanes, lane) })
	if !taken {
		return true
	}
	if _, waits := s.waiting[lane]; !waits {
		s.waiting[lane] = now
	}
	return now.Sub(s.waiting[lane]) > s.ttl
}

// lost says that this node and others that live have been apart for so long that it should join anew: the library never
// takes back a member that it has once missed.
func (s *seating) lost(now time.Time) bool {
	return !s.resigned && !s.astray.IsZero() && now.Sub(s.astray) > 2*s.ttl
}

// rejoins says when a membership that does not hold is given up for another one: the more of them in a row did not, the later.
type rejoins struct {
	again  actors.Backoff
	notYet time.Time // no other membership before this
}

// due says whether to give up the membership now.
func (r *rejoins) due(s *seating, now time.Time) bool {
	if !now.After(r.notYet) {
		return false
	}
	if s.members != nil && s.astray.IsZero() {
		r.again.Reset() // this one has held
	}
	if !s.lost(now) {
		return false
	}
	r.notYet = now.Add(r.again.Next())
	return true
}

// rejoined forgets the topology of the membership that was given up.
func (s *seating) rejoined() {
	s.members, s.astray = nil, time.Time{}
}

// topology takes the addresses of the cluster's members.
func (s *seating) topology(addresses []string) {
	s.members = make(map[string]bool, len(addresses))
	for _, a := range addresses {
		s.members[a] = true
	}
}

// adopt takes what a queue already serves as granted, when an earlier placer granted it.
func (s *seating) adopt(queue string, lanes []string) {
	if _, known := s.granted[queue]; known {
		return
	}
	found := map[int]bool{}
	for _, name := range lanes {
		if q, n, ok := laneOf(name); ok && q == queue {
			found[n] = true
		}
	}
	if len(found) > 0 {
		s.granted[queue] = slices.Sorted(maps.Keys(found))
	}
}
