package pg

import (
	"slices"
	"testing"
	"time"
)

func claimedIDs(rows []Claimed) []int64 {
	var ids []int64
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

// refs are the claims of rows.
func refs(rows []Claimed) []ClaimRef {
	claims := make([]ClaimRef, len(rows))
	for i, r := range rows {
		claims[i] = ClaimRef{r.ID, r.Claim}
	}
	return claims
}

// firstClaims are the claims of rows that were claimed once.
func firstClaims(ids ...int64) []ClaimRef {
	claims := make([]ClaimRef, len(ids))
	for i, id := range ids {
		claims[i] = ClaimRef{id, 1}
	}
	return claims
}

func TestClaimOrder(t *testing.T) {
	t.Parallel()
	s := open(t)
	late := put(t, s, 1)[0]
	urgent := put(t, s, 1, func(i *Insertion) { i.Priority = -5 })[0]
	early := put(t, s, 1, func(i *Insertion) { i.EligibleAt = time.Now().Add(-time.Hour) })[0]
	put(t, s, 1, func(i *Insertion) { i.Priority, i.Delay = -9, time.Hour })
	put(t, s, 1, func(i *Insertion) { i.Queue = "other" })
	if got := claimedIDs(claim(t, s, alice, 1)); !slices.Equal(got, []int64{urgent}) {
		t.Errorf("the most urgent is %v", got)
	}
	if got := claimedIDs(claim(t, s, alice, 10)); !slices.Equal(got, []int64{early, late}) {
		t.Errorf("the rest is %v, expected %v", got, []int64{early, late})
	}
	if got := claim(t, s, alice, 10); len(got) != 0 {
		t.Errorf("rows were claimed twice, or too early, or from another queue: %+v", got)
	}
}

func TestClaimedRow(t *testing.T) {
	t.Parallel()
	s := open(t)
	id := put(t, s, 1, func(i *Insertion) {
		i.Version, i.Priority, i.ConcurrencyKey, i.RateLimit, i.Weight, i.CorrelationKey = 7, 3, "k:p", "lim", 2.5, "order-1"
		i.CorrelationScope = []string{"runnable", "executing", "awaiting_signal", "awaiting_children"}
	})[0]
	exec(t, s, `UPDATE gen_durable SET attempt = 4, awaits = '{x,y}', crashes = 3, crash_step = 'a', cancel_requested = 'why'`)
	row := claimOne(t, s, alice)
	if row.ID != id || row.Machine != "m" || row.Version != 7 || row.Step != "a" || string(row.State) != `{"n": 0}` || row.Attempt != 4 ||
		!slices.Equal(row.Awaits, []string{"x", "y"}) || row.Queue != "default" || row.Priority != 3 || row.ConcurrencyKey != "k:p" ||
		row.ConcurrencyShard == nil || *row.ConcurrencyShard != ProvisionalShard || row.RateLimit != "lim" || row.Weight != 2.5 || row.CorrelationKey != "order-1" ||
		row.ParentID != 0 || row.Crashes != 3 || row.CancelReason == nil || *row.CancelReason != "why" || row.HasInbox || row.HasChildren {
		t.Errorf("the claim shows %+v", row)
	}
	if in := get(t, s, id); in.LockedBy != alice || in.LeaseExpiresAt == nil || in.LeaseExpiresAt.Sub(in.UpdatedAt) != time.Minute {
		t.Errorf("the row is %+v", in)
	}
}

// TestClaimKeys: one row a key, none of a key that is taken; a gated row (with a shard) takes no key (trap 4).
func TestClaimKeys(t *testing.T) {
	t.Parallel()
	s := open(t)
	a := put(t, s, 3, func(i *Insertion) { i.ConcurrencyKey = "a" })
	b := put(t, s, 1, func(i *Insertion) { i.ConcurrencyKey = "b" })
	free := put(t, s, 2)
	first := claim(t, s, alice, 10)
	if got, want := claimedIDs(first), []int64{a[0], b[0], free[0], free[1]}; !slices.Equal(got, want) {
		t.Errorf("claimed %v, expected %v", got, want)
	}
	if got := claim(t, s, alice, 10); len(got) != 0 {
		t.Errorf("claimed %v although their keys are taken", claimedIDs(got))
	}
	commitAll(t, s.NewCommitter("keys"), outcome(first[0], alice, KindAwait)) // parks, keeps the key, frees its slot
	second := claim(t, s, alice, 10)
	if got := claimedIDs(second); !slices.Equal(got, []int64{a[1]}) {
		t.Errorf("claimed %v, expected the next row of the key", got)
	}
	exec(t, s, `UPDATE gen_durable SET concurrency_shard = 0 WHERE id = $1`, a[1])
	if got := claimedIDs(claim(t, s, alice, 10)); !slices.Equal(got, []int64{a[2]}) {
		t.Errorf("claimed %v beside a gated row of the name", got)
	}
}

func TestClaimSkip(t *testing.T) {
	t.Parallel()
	s := open(t)
	cancelled := put(t, s, 3)[2] // to be ended, which takes no code of the step's
	exec(t, s, `UPDATE gen_durable SET cancel_requested = 'why' WHERE id = $1`, cancelled)
	other := put(t, s, 1, func(i *Insertion) { i.Version = 2 })[0]
	rows, err := s.Claim(testContext(t), ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: 10,
		Skip: []StepRef{{"x", 1, "a"}, {"m", 1, "a"}, {"m", 2, "b"}}})
	if err != nil || !slices.Equal(slices.Sorted(slices.Values(claimedIDs(rows))), []int64{cancelled, other}) {
		t.Errorf("claimed %v, %v", claimedIDs(rows), err)
	}
}

// TestClaimForeignScope: a row of the original engine that enters its scope only when it executes, while its key is
// occupied, waits alone.
func TestClaimForeignScope(t *testing.T) {
	t.Parallel()
	s := open(t)
	ids := put(t, s, 4)
	exec(t, s, `UPDATE gen_durable SET correlation_key = 'k', correlation_scope = '{executing}' WHERE id = ANY ($1)`, ids[:3])
	first := claim(t, s, alice, 10)
	if n := len(first); n != 1 && n != 2 {
		t.Fatalf("claimed %v", claimedIDs(first))
	}
	rest := claim(t, s, alice, 10)
	if got := len(first) + len(rest); got != 2 {
		t.Fatalf("claimed %v and %v, expected one of the key and the other row", claimedIDs(first), claimedIDs(rest))
	}
	exec(t, s, `UPDATE gen_durable SET correlation_scope = '{runnable}' WHERE correlation_key = 'k' AND status = 'executing'`)
	if r := reap(t, s); r.Rows != 2 {
		t.Errorf("reaped %d rows", r.Rows)
	}
}

// TestInboxPages: of a large inbox the awaited signals come first, and the rest in pages, each once.
func TestInboxPages(t *testing.T) {
	t.Parallel()
	s := open(t)
	id := put(t, s, 1)[0]
	exec(t, s, `INSERT INTO signals (target_id, name) SELECT $1, CASE WHEN i > 2400 THEN 'go' ELSE 'noise' END FROM generate_series(1, 2500) i`, id)
	exec(t, s, `UPDATE gen_durable SET has_inbox = true, awaits = '{go}'`)
	row := claimOne(t, s, alice)
	if len(row.Inbox) != HandedOver || !row.MoreInbox {
		t.Fatalf("%d signals were handed over, more: %v", len(row.Inbox), row.MoreInbox)
	}
	if !slices.IsSortedFunc(row.Inbox, func(a, b Signal) int { return int(a.ID - b.ID) }) {
		t.Error("the inbox is not in order")
	}
	seen, awaited := map[int64]bool{}, 0
	var handed []int64
	take := func(page []Signal) {
		for _, sig := range page {
			if seen[sig.ID] {
				t.Errorf("signal %d came twice", sig.ID)
			}
			seen[sig.ID] = true
			handed = append(handed, sig.ID)
			if sig.Name == "go" {
				awaited++
			}
		}
	}
	take(row.Inbox)
	if awaited != 100 {
		t.Errorf("%d of 100 awaited signals are among the first", awaited)
	}
	for {
		page, err := s.InboxPage(testContext(t), id, handed, 400)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		take(page)
	}
	if len(seen) != 2500 {
		t.Errorf("%d signals were seen", len(seen))
	}
}
