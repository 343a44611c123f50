package cluster

import (
	"bytes"
	"crypto/sha256"
	"strconv"
	"strings"
)

// laneName is how a lane is called in claims, in its node's row and in the tree of actors: <queue>#<n>.
func laneName(queue string, n int) string { return queue + "#" + strconv.Itoa(n) }

// laneOf takes a lane's name apart. What has no number (a queue without numbered lanes, a sweeper) is no numbered lane.
func laneOf(name string) (queue string, n int, ok bool) {
	i := strings.LastIndexByte(name, '#')
	if i < 0 {
		return "", 0, false
	}
	n, err := strconv.Atoi(name[i+1:])
	return name[:i], n, err == nil && n >= 0
}

// owner says which of the addresses a lane belongs to: the one that scores highest with it. Every node comes to the same
// answer from the same addresses, in whatever order; a node that comes or goes moves its own lanes and no others. A real
// hash, as addresses of one fleet differ in a digit or two. Empty without addresses.
func owner(lane string, addresses []string) string {
	var best string
	var highest [sha256.Size]byte
	for _, a := range addresses {
		score := sha256.Sum256([]byte(lane + "\x00" + a))
		if c := bytes.Compare(score[:], highest[:]); best == "" || c > 0 || c == 0 && a < best {
			best, highest = a, score
		}
	}
	return best
}

// LanesHere counts the numbered lanes of a queue that this node serves, according to Directory.Members.
func LanesHere(members []Member, queue string) int {
	n := 0
	for _, m := range members {
		if !m.Self {
			continue
		}
		for _, name := range m.Lanes {
			if q, _, ok := laneOf(name); ok && q == queue {
				n++
			}
		}
	}
	return n
}
