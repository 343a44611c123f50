package pg

import (
	"fmt"
	"slices"
	"testing"
)

func TestSettled(t *testing.T) {
	t.Parallel()
	s := open(t)
	ids := put(t, s, 4)
	exec(t, s, `UPDATE gen_durable SET status = 'done', result = '[1]' WHERE id = $1`, ids[0])
	exec(t, s, `UPDATE gen_durable SET status = 'failed', last_error = 'no', awaits = '{x}' WHERE id = $1`, ids[1])
	exec(t, s, `UPDATE gen_durable SET status = 'awaiting_signal', awaits = '{a,b}' WHERE id = $1`, ids[2])
	got, err := s.Settled(testContext(t), []int64{ids[2], 999999, ids[0], ids[1], ids[3], ids[0]})
	if err != nil {
		t.Fatal(err)
	}
	want := []Settled{
		{ID: ids[2], Status: AwaitingSignal, Awaits: []string{"a", "b"}}, {ID: 999999}, {ID: ids[0], Status: Done, Result: []byte("[1]")},
		{ID: ids[1], Status: Failed, Error: "no"}, {ID: ids[3], Status: Runnable}, {ID: ids[0], Status: Done, Result: []byte("[1]")},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	id := put(t, s, 1)[0]
	exec(t, s, `UPDATE gen_durable SET status = 'executing', awaits = '{b}' WHERE id = $1`, id)
	var signals []int64
	for _, name := range []string{"a", "b", "a", "b", "c"} {
		signals = append(signals, signal(t, s, id, name))
	}
	handed := []int64{signals[1]}
	for i, want := range [][]int64{{signals[3], signals[0]}, {signals[2], signals[4]}, nil} {
		page, err := s.InboxPage(ctx, id, handed, 2)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, sig := range page {
			got = append(got, sig.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("page %d: %v, expected %v", i, got, want)
		}
		handed = append(handed, got...)
	}
	if page, err := s.InboxPage(ctx, id, nil, 100); err != nil || len(page) != 5 || page[0].Name != "b" || string(page[0].Payload) != "{}" {
		t.Errorf("with nothing handed: %v, %v", page, err)
	}
	kids := put(t, s, 3)
	exec(t, s, `UPDATE gen_durable SET parent_id = $1 WHERE id = ANY ($2)`, id, kids)
	if page, err := s.ChildrenPage(ctx, id, kids[0], 5); err != nil || len(page) != 2 || page[0].ID != kids[1] || page[0].Machine != "m" {
		t.Errorf("children: %+v, %v", page, err)
	}
}
