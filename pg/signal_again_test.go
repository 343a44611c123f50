package pg

import "testing"

// TestRepeatedSignalToWhatHasEnded: a signal that was accepted before its target ended is accepted when it is sent again, one by
// one and in a batch; what was never accepted is refused.
func TestRepeatedSignalToWhatHasEnded(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ids := newInstances(t, s, host, 2)
	first := deliver(t, s, host, Delivery{ID: ids[0], Name: "n", DedupKey: "k"})
	exec(t, s, `UPDATE gen_durable SET status = 'done' WHERE id = $1`, ids[0])
	again := Delivered{TargetID: ids[0], Duplicate: true}
	if out := deliver(t, s, host, Delivery{ID: ids[0], Name: "n", DedupKey: "k"}); first[0].SignalID == 0 || out[0] != again {
		t.Errorf("%+v, before that %+v", out, first)
	}
	for _, d := range []Delivery{{ID: ids[0], Name: "n", DedupKey: "other"}, {ID: ids[0], Name: "n"}, {ID: 1 << 40, Name: "n", DedupKey: "k"}} {
		if out := deliver(t, s, host, d); out[0] != (Delivered{}) {
			t.Errorf("%+v: %+v", d, out)
		}
	}
	out := deliver(t, s, host, Delivery{ID: ids[0], Name: "n", DedupKey: "k"}, Delivery{ID: ids[0], Name: "n", DedupKey: "other"},
		Delivery{ID: ids[1], Name: "n", DedupKey: "k"}, Delivery{ID: ids[0], Name: "n"}, Delivery{Key: "nobody", Name: "n", DedupKey: "k"})
	if out[0] != again || out[1] != (Delivered{}) || out[2].SignalID == 0 || out[3] != (Delivered{}) || out[4] != (Delivered{}) {
		t.Errorf("in a batch: %+v", out)
	}
}
