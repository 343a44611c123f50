package pg

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// instance is a row as the model keeps it.
type instance struct {
	id, parent        int64
	status            Status
	step              int
	attempt, crashes  int
	crashStep         int
	awaits            []string
	key               string // concurrency key
	worker            string
	pending           int
	cancel, lastError string
	inbox             []sig
	lastClaim         *Claimed
	presented         []int64 // the awaited signals that the last claim handed over
	// Whether it ever had a signal, or was a parent.
	hadInbox, hadChildren bool
	// ending: a cancel had been requested when it was claimed last. It executes without its key.
	ending bool
}

type sig struct {
	id   int64
	name string
}

func (in *instance) terminal() bool { return in.status == Done || in.status == Failed }

// model is what the tables should hold, beside the Store that holds them.
type model struct {
	t    *testing.T
	s    *Store
	c    *Committer
	rows map[int64]*instance
	// stale are outcomes that could still be on their way from a worker that has lost its row.
	stale []Outcome
}

// TestModel plays random operations against the database and a model of it in memory, and compares the two after each.
func TestModel(t *testing.T) {
	t.Parallel()
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	if before == checks.DefValue {
		if err := checks.Value.Set("15"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = checks.Value.Set(before) })
	}
	s := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		exec(t, s, `TRUNCATE gen_durable CASCADE`)
		m := &model{t: t, s: s, c: s.NewCommitter("model"), rows: map[int64]*instance{}}
		rt.Repeat(map[string]func(*rapid.T){
			"":        m.compare,
			"insert":  m.insert,
			"signal":  m.signal,
			"claim":   m.claim,
			"outcome": m.outcomes,
			"result":  m.outcomes,
			"beat":    m.beat,
			"reap":    m.reap,
			"wake":    m.wake,
			"cancel":  m.cancel,
			"collect": m.collect,
			"release": m.release,
		})
	})
}

func (m *model) ids(good func(*instance) bool) []int64 {
	var ids []int64
	for id, in := range m.rows {
		if good(in) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// pick draws one of the rows; nil when there is none.
func (m *model) pick(rt *rapid.T, good func(*instance) bool) *instance {
	ids := m.ids(good)
	if len(ids) == 0 {
		return nil
	}
	return m.rows[rapid.SampledFrom(ids).Draw(rt, "row")]
}

func anyRow(*instance) bool { return true }

func (m *model) insert(rt *rapid.T) {
	key := rapid.SampledFrom([]string{"", "", "k1", "k2"}).Draw(rt, "key")
	for _, id := range put(m.t, m.s, rapid.IntRange(1, 3).Draw(rt, "n"), func(i *Insertion) { i.ConcurrencyKey, i.Step = key, "0" }) {
		m.rows[id] = &instance{id: id, status: Runnable, key: key}
	}
}

func (m *model) signal(rt *rapid.T) {
	in := m.pick(rt, anyRow)
	if in == nil {
		return
	}
	name := rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "name")
	d, err := m.s.Signal(testContext(m.t), m.s.pool, []Delivery{{ID: in.id, Name: name, Payload: []byte(`{}`)}})
	if err != nil {
		rt.Fatal(err)
	}
	if in.terminal() != (d[0].TargetID == 0) {
		rt.Fatalf("signal to a row that is %s: %+v", in.status, d[0])
	}
	if in.terminal() {
		return
	}
	in.hadInbox = true
	in.inbox = append(in.inbox, sig{d[0].SignalID, name})
	woken := in.status == AwaitingSignal && slices.Contains(in.awaits, name)
	if woken != d[0].Woken {
		rt.Fatalf("signal %s to a row that is %s on %v: %+v", name, in.status, in.awaits, d[0])
	}
	if woken {
		in.status = Runnable
	}
}

func (m *model) claim(rt *rapid.T) {
	worker := rapid.SampledFrom([]string{alice, bob}).Draw(rt, "worker")
	got := claim(m.t, m.s, worker, 1000)
	busy := map[string]int{}
	for _, in := range m.rows {
		if in.key != "" && in.status == Executing && !in.ending {
			busy[in.key]++
		}
	}
	expected := 0
	free := map[string]bool{}
	for _, in := range m.rows {
		switch {
		case in.status != Runnable:
			continue
		case in.cancel != "": // it is to be ended, and takes no key
		case in.key != "" && (busy[in.key] > 0 || free[in.key]):
			continue
		case in.key != "":
			free[in.key] = true
		}
		expected++
	}
	if len(got) != expected {
		rt.Fatalf("claimed %d rows, expected %d", len(got), expected)
	}
	for i := range got {
		row := &got[i]
		in := m.rows[row.ID]
		if in == nil || in.status != Runnable || in.key != "" && in.cancel == "" && busy[in.key] > 0 {
			rt.Fatalf("claimed %+v, which is %+v", row, in)
		}
		if in.ending = in.cancel != ""; !in.ending {
			busy[in.key]++
		}
		in.status, in.worker, in.lastClaim, in.presented = Executing, worker, row, nil
		for _, sg := range row.Inbox {
			if slices.Contains(in.awaits, sg.Name) {
				in.presented = append(in.presented, sg.ID)
			}
		}
		crashes := 0
		if in.crashStep == in.step {
			crashes = in.crashes
		}
		if row.Crashes != crashes || row.Attempt != in.attempt || len(row.Inbox) != len(in.inbox) || (row.CancelReason != nil) != (in.cancel != "") {
			rt.Fatalf("the claim shows %+v, expected %+v", row, in)
		}
	}
}

// outcomes flushes a few outcomes at once: of rows that are executing, and late ones of former owners.
func (m *model) outcomes(rt *rapid.T) {
	var batch []Outcome
	seen := map[int64]bool{}
	for _, id := range m.ids(func(in *instance) bool { return in.status == Executing }) {
		if rapid.Bool().Draw(rt, "take") {
			in := m.rows[id]
			batch = append(batch, m.draw(rt, in))
			seen[id] = true
		}
	}
	if len(m.stale) > 0 && rapid.Bool().Draw(rt, "late") {
		// A worker submits the steps of a chain one after the other: of the claim that holds there is no late one.
		if late := rapid.SampledFrom(m.stale).Draw(rt, "which"); !seen[late.ID] && !m.holds(late) {
			batch = append(batch, late)
		}
	}
	if len(batch) == 0 {
		return
	}
	f := flushAll(m.t, m.c, batch...)
	var ended []*instance
	for i, o := range batch {
		in, v := m.rows[o.ID], f.Verdicts[i]
		owned := m.holds(o)
		want := Committed
		switch {
		case !owned:
			want = Stale
		case in.cancel != "":
			want = Cancelled
		}
		if v.Fate != want {
			rt.Fatalf("outcome %+v of %+v: verdict %+v", o, in, v)
		}
		if v.Status == Executing && (v.HasInbox != (in.hadInbox) || v.HasChildren != in.hadChildren) {
			rt.Fatalf("outcome %+v of %+v: verdict %+v", o, in, v)
		}
		if owned && m.apply(in, o, v) {
			ended = append(ended, in)
		}
	}
	m.join(ended...)
}

// holds reports whether the outcome is one of the claim that its row has now.
func (m *model) holds(o Outcome) bool {
	in := m.rows[o.ID]
	return in != nil && in.status == Executing && in.worker == o.Worker && in.lastClaim.Claim == o.Claim
}

// draw makes an outcome of an executing row; sometimes it is kept as one that comes late, too.
func (m *model) draw(rt *rapid.T, in *instance) Outcome {
	o := outcome(*in.lastClaim, in.worker, rapid.SampledFrom([]Kind{KindNext, KindRetry, KindAwait, KindAwait, KindChildren, KindContinue, KindContinue, KindDone, KindFailed}).Draw(rt, "kind"))
	o.Handed = in.presented
	if o.Kind == KindNext || o.Kind == KindAwait || o.Kind == KindChildren || o.Kind == KindContinue {
		o.Step = fmt.Sprint(in.step + 1)
	}
	switch o.Kind {
	case KindAwait:
		o.Awaits = rapid.SampledFrom([][]string{{"x"}, {"y"}, {"x", "y"}}).Draw(rt, "awaits")
		o.Timeout = rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(rt, "timeout")
	case KindChildren:
		for range rapid.IntRange(0, 3).Draw(rt, "children") {
			o.Children = append(o.Children, Insertion{Machine: "c", Version: 1, Step: "0", Queue: "default"})
		}
	}
	m.stale = append(m.stale, o)
	return o
}

// apply changes a row as its outcome says, and reports whether that ended it.
func (m *model) apply(in *instance, o Outcome, v Verdict) bool {
	worker := in.worker
	in.worker, in.crashes, in.crashStep = "", 0, -1
	consume := func() {
		in.inbox = slices.DeleteFunc(in.inbox, func(s sig) bool { return slices.Contains(o.Handed, s.id) })
	}
	progress := func(status Status) {
		in.status, in.step, in.attempt, in.awaits, in.lastError = status, in.step+1, 0, nil, ""
	}
	kind := o.Kind
	if in.cancel != "" {
		kind, o.Error = KindFailed, "cancelled: "+in.cancel
	}
	switch kind {
	case KindNext:
		progress(Runnable)
		consume()
	case KindContinue:
		progress(Executing)
		consume()
		in.worker, in.presented = worker, nil
		in.lastClaim.HasInbox = v.HasInbox
	case KindRetry:
		in.status, in.attempt = Runnable, in.attempt+1
	case KindAwait:
		progress(AwaitingSignal)
		in.awaits = o.Awaits
		if slices.ContainsFunc(in.inbox, func(s sig) bool {
			return slices.Contains(o.Awaits, s.name) && !slices.Contains(o.Handed, s.id)
		}) {
			in.status = Runnable
		}
	case KindChildren:
		progress(AwaitingChildren)
		in.hadChildren = true
		consume()
		in.pending += len(o.Children)
		if in.pending == 0 {
			in.status = Runnable
		}
		for _, id := range value[[]int64](m.t, m.s, `SELECT coalesce(array_agg(id), '{}') FROM gen_durable WHERE parent_id = $1`, in.id) {
			if m.rows[id] == nil {
				m.rows[id] = &instance{id: id, parent: in.id, status: Runnable}
			}
		}
	case KindDone:
		in.status, in.lastError, in.inbox, in.awaits = Done, "", nil, nil
		return true
	case KindFailed:
		in.status, in.lastError, in.inbox, in.awaits = Failed, o.Error, nil, nil
		return true
	}
	return false
}

func (m *model) join(ended ...*instance) {
	for _, child := range ended {
		p := m.rows[child.parent]
		if p == nil {
			continue
		}
		p.pending--
		if p.pending == 0 && p.status == AwaitingChildren {
			p.status = Runnable
		}
	}
}

func (m *model) beat(rt *rapid.T) {
	ids := m.ids(anyRow)
	worker := rapid.SampledFrom([]string{alice, bob}).Draw(rt, "worker")
	beats, err := m.s.Heartbeat(testContext(m.t), worker, time.Minute, ids)
	if err != nil {
		rt.Fatal(err)
	}
	for i, b := range beats {
		in, want := m.rows[ids[i]], Lost
		if in.status == Executing && in.worker == worker {
			want = Extended
		}
		if b.State != want || want == Extended && (b.CancelReason != nil) != (in.cancel != "") {
			rt.Fatalf("the beat of %+v is %+v", in, b)
		}
	}
}

func (m *model) reap(rt *rapid.T) {
	in := m.pick(rt, func(in *instance) bool { return in.status == Executing })
	if in == nil {
		return
	}
	exec(m.t, m.s, `UPDATE gen_durable SET lease_expires_at = now() - interval '1 s' WHERE id = $1`, in.id)
	if r, err := m.s.ReapLeases(testContext(m.t), time.Time{}, 100); err != nil || r.Rows != 1 {
		rt.Fatalf("reaped %+v, %v", r, err)
	}
	if in.crashStep != in.step {
		in.crashes = 0
	}
	in.status, in.worker, in.attempt, in.crashes, in.crashStep = Runnable, "", in.attempt+1, in.crashes+1, in.step
}

func (m *model) release(rt *rapid.T) {
	worker := rapid.SampledFrom([]string{alice, bob}).Draw(rt, "worker")
	late := rapid.Bool().Draw(rt, "late") // of an earlier claim
	var claims []ClaimRef
	for _, id := range m.ids(func(in *instance) bool { return in.lastClaim != nil }) {
		claim := ClaimRef{id, m.rows[id].lastClaim.Claim}
		if late {
			claim.Claim--
		}
		claims = append(claims, claim)
	}
	if _, err := m.s.Release(testContext(m.t), worker, claims); err != nil {
		rt.Fatal(err)
	}
	for _, in := range m.rows {
		if in.status == Executing && in.worker == worker && !late {
			in.status, in.worker = Runnable, ""
		}
	}
}

func (m *model) wake(rt *rapid.T) {
	in := m.pick(rt, func(in *instance) bool { return in.status == AwaitingSignal })
	if in == nil {
		return
	}
	exec(m.t, m.s, `UPDATE gen_durable SET await_deadline = now() WHERE id = $1`, in.id)
	if r, err := m.s.WakeDeadlines(testContext(m.t), time.Time{}, 100); err != nil || r.Rows != 1 {
		rt.Fatalf("woken %+v, %v", r, err)
	}
	in.status = Runnable
}

func (m *model) cancel(rt *rapid.T) {
	in := m.pick(rt, anyRow)
	if in == nil {
		return
	}
	r, err := m.s.Cancel(testContext(m.t), m.s.pool, in.id, "enough")
	if err != nil {
		rt.Fatal(err)
	}
	switch {
	case in.terminal():
		if r.Result != AlreadyTerminal {
			rt.Fatalf("cancel of %+v: %+v", in, r)
		}
	case in.status == Executing:
		if r.Result != Requested {
			rt.Fatalf("cancel of %+v: %+v", in, r)
		}
		in.cancel = "enough"
	default:
		if r.Result != Ended {
			rt.Fatalf("cancel of %+v: %+v", in, r)
		}
		in.status, in.lastError, in.inbox, in.awaits, in.cancel = Failed, "cancelled: enough", nil, nil, ""
		m.join(in)
	}
}

func (m *model) collect(rt *rapid.T) {
	want := m.ids(func(in *instance) bool {
		p := m.rows[in.parent]
		waited := len(m.ids(func(c *instance) bool { return c.parent == in.id && !c.terminal() })) > 0
		return in.terminal() && (p == nil || p.terminal()) && !waited
	})
	n, _, err := m.s.CollectTerminal(testContext(m.t), 0, 0, Position{}, 1000)
	if err != nil || n != len(want) {
		rt.Fatalf("collected %d rows, %v; expected %v", n, err, want)
	}
	for _, id := range want {
		delete(m.rows, id)
	}
	for _, in := range m.rows {
		if slices.Contains(want, in.parent) {
			in.parent = 0
		}
	}
}

// compare reads everything and puts it side by side with the model.
func (m *model) compare(rt *rapid.T) {
	stored := value[string](m.t, m.s, `
		SELECT coalesce(string_agg(concat_ws(' ', id, 'parent', coalesce(parent_id, 0), status, 'step', step, 'attempt', attempt,
		           'on', coalesce(array_to_string(awaits, ','), ''), 'key', concurrency_key, 'by', locked_by, 'waits', children_pending,
		           'crashes', crashes, 'cancel', CASE WHEN status NOT IN ('done', 'failed') THEN cancel_requested END, 'error', last_error,
		           'inbox', (SELECT string_agg(s.id::text, ',' ORDER BY s.id) FROM signals s WHERE s.target_id = g.id)),
		       E'\n' ORDER BY id), '')
		  FROM gen_durable g`)
	var lines []string
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		in := m.rows[id]
		words := []string{fmt.Sprint(id), "parent", fmt.Sprint(in.parent), string(in.status), "step", fmt.Sprint(in.step), "attempt", fmt.Sprint(in.attempt), "on", strings.Join(in.awaits, ",")}
		add := func(name, value string) {
			if words = append(words, name); value != "" {
				words = append(words, value)
			}
		}
		add("key", in.key)
		add("by", in.worker)
		add("waits", fmt.Sprint(in.pending))
		add("crashes", fmt.Sprint(in.crashes))
		cancel := in.cancel
		if in.terminal() {
			cancel = ""
		}
		add("cancel", cancel)
		add("error", in.lastError)
		var inbox []string
		for _, s := range in.inbox {
			inbox = append(inbox, fmt.Sprint(s.id))
		}
		add("inbox", strings.Join(inbox, ","))
		lines = append(lines, strings.Join(words, " "))
	}
	if want := strings.Join(lines, "\n"); stored != want {
		rt.Fatalf("the tables hold\n%s\nexpected\n%s", stored, want)
	}
}
