package pg

import "github.com/gendurable/gendurable/limiter"

// slots are those of gates that rows held until a statement took them from their workers, as the columns at its end.
type slots struct {
	ids    []int64
	claims []int32
	keys   []string
	shards []int16
	mark   int64
}

// after returns where a row is scanned into whose last columns are the slots.
func (s *slots) after(columns ...any) []any {
	return append(columns, &s.ids, &s.claims, &s.keys, &s.shards, &s.mark)
}

func (s *slots) clear() { *s = slots{} }

// credit tells of slots that a transaction has freed, now that it has committed. After an error nobody is told: if it did
// commit, the next reconcile finds them.
func (s *Store) credit(freed slots, err error) {
	if err != nil || len(freed.ids) == 0 || s.freed == nil {
		return
	}
	released := make([]limiter.Release, 0, len(freed.ids))
	for i, id := range freed.ids {
		if freed.shards[i] < 0 && !s.foreign {
			continue // it was never admitted: our own limiter stamps the rows
		}
		released = append(released, limiter.Release{
			Slot: limiter.Slot{ID: id, Claim: int(freed.claims[i]), Key: freed.keys[i], Shard: freed.shards[i]},
			Mark: uint64(freed.mark),
		})
	}
	if len(released) > 0 {
		s.freed(released)
	}
}
