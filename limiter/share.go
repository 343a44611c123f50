package limiter

import (
	"math"
	"slices"
	"time"
)

// Share is the part of a limit's total that its shard number i of n has. The shares are whole numbers that differ by at
// most one, but for a fraction of the total, which belongs to shard 0; so they sum exactly to the total. Of a rate, a
// shard's part of the refill is as large as its part of the burst: empty shards are full again at the same time.
func Share(total float64, n, i int) float64 {
	whole := math.Floor(total)
	base := math.Floor(whole / float64(n))
	share := base
	if float64(i) < whole-base*float64(n) {
		share++
	}
	if i == 0 {
		share += total - whole
	}
	return share
}

// Bucket is one shard of a rate limit's key: how many tokens it has, how many it can have, and how many come a second.
type Bucket struct{ Tokens, Capacity, PerSecond float64 }

// Take takes tokens from buckets, from the first on, as far as they have any.
func Take(buckets []Bucket, tokens float64) {
	for i := range buckets {
		taken := min(tokens, buckets[i].Tokens)
		buckets[i].Tokens -= taken
		tokens -= taken
	}
}

// Until is the time in which the buckets together will have so many tokens; negative when they never will.
func Until(buckets []Bucket, tokens float64) time.Duration {
	// The sum grows in straight lines, with a bend wherever a bucket becomes full.
	bends := make([]float64, 0, len(buckets)+1)
	for _, b := range buckets {
		if b.PerSecond > 0 && b.Tokens < b.Capacity {
			bends = append(bends, (b.Capacity-b.Tokens)/b.PerSecond)
		}
	}
	slices.Sort(bends)
	from := 0.0
	for _, bend := range append(bends, math.Inf(1)) {
		have, speed := 0.0, 0.0
		for _, b := range buckets {
			have += min(b.Capacity, b.Tokens+from*b.PerSecond)
			if b.PerSecond > 0 && (b.Capacity-b.Tokens)/b.PerSecond > from {
				speed += b.PerSecond
			}
		}
		if have >= tokens {
			return seconds(from)
		}
		if speed > 0 {
			if t := from + (tokens-have)/speed; t <= bend {
				return seconds(t)
			}
		}
		from = bend
		if math.IsInf(from, 1) {
			break
		}
	}
	return -1
}

// maxWait bounds waits that would overflow.
const maxWait = 365 * 24 * time.Hour

// seconds rounds up, so that whoever waits so long is not too early by a fraction.
func seconds(s float64) time.Duration {
	if s > maxWait.Seconds() {
		return maxWait
	}
	return time.Duration(math.Ceil(s*1e6))*time.Microsecond + time.Microsecond
}
