package limiter

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestValidate(t *testing.T) {
	good := Rate{Name: "r", Allowed: 10, Per: time.Second}
	for want, c := range map[string]Config{
		"":                           {Rates: []Rate{good, {Name: "half", Allowed: 0.5, Per: time.Hour}}, Gates: []Gate{{Name: "r", Limit: 1}}},
		`rate limit "": the name is`: {Rates: []Rate{{Allowed: 1, Per: 1}}},
		"which separates":            {Gates: []Gate{{Name: "a:b", Limit: 1}}},
		"not valid UTF-8":            {Gates: []Gate{{Name: "a\x00", Limit: 1}}},
		"longer than":                {Gates: []Gate{{Name: strings.Repeat("x", 256), Limit: 1}}},
		"Allowed is 0":               {Rates: []Rate{{Name: "r", Per: 1}}},
		"Allowed is NaN":             {Rates: []Rate{{Name: "r", Allowed: math.NaN(), Per: 1}}},
		"Allowed is +Inf":            {Rates: []Rate{{Name: "r", Allowed: math.Inf(1), Per: 1}}},
		"Per is 0s":                  {Rates: []Rate{{Name: "r", Allowed: 1}}},
		"Burst is -1":                {Rates: []Rate{{Name: "r", Allowed: 1, Per: 1, Burst: -1}}},
		"but Burst is only 1":        {Rates: []Rate{{Name: "r", Allowed: 9, Per: 1, Burst: 1.5, Shards: 2}}},
		"but Limit is only 3":        {Gates: []Gate{{Name: "g", Limit: 3, Shards: 4}}},
		"Limit is 0":                 {Gates: []Gate{{Name: "g"}}},
		"Shards is -1":               {Gates: []Gate{{Name: "g", Limit: 1, Shards: -1}}},
		"Shards is 1025":             {Gates: []Gate{{Name: "g", Limit: 2000, Shards: 1025}}},
		"given twice":                {Rates: []Rate{good, good}},
	} {
		err := c.Validate()
		if want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, expected %q", c, err, want)
		}
	}
	both := Config{Rates: []Rate{{}}, Gates: []Gate{{}}}
	if err := both.Validate(); err == nil || !strings.Contains(err.Error(), "rate") || !strings.Contains(err.Error(), "gate") {
		t.Errorf("two mistakes: %v", err)
	}
}

func TestDefaults(t *testing.T) {
	if r := (Rate{Allowed: 60, Per: time.Minute}).Normalize(); r.Burst != 60 || r.Shards != 1 || r.PerSecond() != 1 {
		t.Errorf("%+v", r)
	}
	c := Config{Gates: []Gate{{Name: "b"}, {Name: "a"}}}
	if got := strings.Join(c.GateNames(), " "); got != "a b" {
		t.Errorf("gates %s", got)
	}
	for key, want := range map[string]string{"a": "a", "a:b": "a", "a:b:c": "a", ":b": ""} {
		if got := NameOf(key); got != want {
			t.Errorf("the name in %q is %q", key, got)
		}
	}
}

// TestSharesSumExactly: 100 cases, some milliseconds.
func TestSharesSumExactly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		total := rapid.Float64Range(0.001, 1e6).Draw(rt, "total")
		n := rapid.IntRange(1, 64).Draw(rt, "shards")
		sum, least, most := 0.0, math.Inf(1), 0.0
		for i := range n {
			share := Share(total, n, i)
			whole := math.Floor(share)
			least, most = min(least, whole), max(most, whole)
			if i > 0 {
				sum += share
			}
		}
		if sum += Share(total, n, 0); math.Abs(sum-total) > 1e-9*total {
			rt.Fatalf("%d shares of %v sum to %v", n, total, sum)
		}
		if total == math.Floor(total) && sum != total || most-least > 1 {
			rt.Fatalf("%d shares of %v sum to %v and are between %v and %v", n, total, sum, least, most)
		}
	})
}

func TestUntil(t *testing.T) {
	two := []Bucket{{Tokens: 5, Capacity: 5, PerSecond: 1}, {Tokens: 0, Capacity: 5, PerSecond: 1}}
	for _, c := range []struct {
		buckets []Bucket
		tokens  float64
		want    time.Duration
	}{
		{two, 5, 0},
		{two, 6, time.Second}, // the full one gets no more
		{two, 10, 5 * time.Second},
		{two, 11, -1},
		{[]Bucket{{Tokens: 0, Capacity: 1, PerSecond: 0}}, 1, -1},
		{[]Bucket{{Tokens: 0, Capacity: 10, PerSecond: 2}, {Tokens: 4, Capacity: 5, PerSecond: 1}}, 12, 3500 * time.Millisecond},
		{[]Bucket{{Capacity: 1, PerSecond: 1e-12}}, 1, maxWait},
		{nil, 1, -1},
	} {
		got := Until(c.buckets, c.tokens)
		if got < c.want || got > c.want+2*time.Microsecond {
			t.Errorf("%v until %v: %v, expected %v", c.buckets, c.tokens, got, c.want)
		}
	}
	Take(two, 7)
	if two[0].Tokens != 0 || two[1].Tokens != 0 {
		t.Errorf("after taking more than there is: %+v", two)
	}
}
