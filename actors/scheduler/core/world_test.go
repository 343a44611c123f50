package core

import (
	"errors"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// world is what surrounds a core in the property test: which rows the database has under the identity, what
// really runs, and which questions of the core are still unanswered.
type world struct {
	t     *rapid.T
	core  *Core
	slots int
	now   time.Time
	wake  time.Time

	nextID int64
	owned  map[int64]bool // claimed in the database
	claims map[int64]int  // how often a row was claimed
	ran    map[int64]int  // the claim that a run is of
	// runs are the runs that were started and whose end was not reported; true = the outcome is durable already.
	runs map[int64]bool
	// handed are the runs that have given up their slot, by what the core was told, and turns says how often they did; wants are those
	// of them that want one again, and resumed those that have got one.
	handed, resumed map[int64]bool
	turns, wished   map[int64]int // wished is the turn after which a run asked last
	wants           map[int64]wish
	most            int            // runs that may be handed over at once, beside those with a slot
	left            map[int64]bool // to their leases, on purpose
	free            []int64        // rows that ran here before and could be claimed again

	claim int // asked; 0 = none in flight
	// pending are rows of the last claim of which the limiter decides; admitting also while it has none, which cannot be.
	pending   []pg.Claimed
	admitting bool
	// asks counts the claims; askedIn is the claim that a row came with, paused the last one that was asked before a pause.
	asks, paused int
	askedIn      map[int64]int
	admitted     map[int64]bool // by the limiter, under the present claim
	// freed are gates' keys of which a slot came free after the last time that one of their rows was denied.
	freed map[string]bool

	releases [][]pg.ClaimRef
	beat     []int64
	extends  []int64
	unheld   bool
	held     map[int64]bool
	asked    bool
	list     []int64 // what was started before the question; the answer is what of it still runs
	drained  bool
	draining bool
}

func (w *world) on(e Event) {
	fx := w.core.On(e, w.now)
	w.wake = fx.Wake
	for _, r := range fx.Start {
		if _, running := w.runs[r.ID]; running {
			w.t.Fatalf("row %d was started twice", r.ID)
		}
		if w.draining {
			w.t.Fatalf("row %d was started in a drain", r.ID)
		}
		if _, asked := asks(r); r.CancelReason == nil && r.ConcurrencyShard != nil && *r.ConcurrencyShard < 0 || asked && !w.admitted[r.ID] {
			w.t.Fatalf("row %d was started without its limits' consent", r.ID)
		}
		if w.askedIn[r.ID] <= w.paused {
			w.t.Fatalf("row %d was claimed before a pause and started in it", r.ID)
		}
		w.runs[r.ID], w.ran[r.ID] = false, r.Claim
	}
	for _, r := range fx.Resume {
		w.answered(r)
	}
	if len(fx.Start) > 0 && len(w.wants) > 0 {
		w.t.Fatalf("rows are started while %d wait for a slot", len(w.wants))
	}
	for id, asked := range w.wants {
		if asked.chain && !asked.at.Add(returnPatience).After(w.now) {
			w.t.Fatalf("row %d has waited for a slot since %v", id, w.now.Sub(asked.at))
		}
	}
	if n := len(w.runs) - len(w.handed); n > w.slots {
		w.t.Fatalf("%d rows run in %d slots", n, w.slots)
	}
	if n := len(w.runs); n > w.slots+w.most {
		w.t.Fatalf("%d rows are at work, for %d slots and %d commits", n, w.slots, w.most)
	}
	if len(fx.Release) > 0 {
		for _, r := range fx.Release {
			if done, running := w.runs[r.ID]; running && !done && !w.core.running[r.ID].lost {
				w.t.Fatalf("running row %d was released", r.ID)
			}
		}
		w.releases = append(w.releases, slices.Clone(fx.Release))
	}
	if len(fx.Beat) > 0 {
		if w.beat != nil {
			w.t.Fatal("two beats at once")
		}
		w.beat = slices.Clone(fx.Beat)
	}
	w.extends = append(w.extends, fx.Extend...)
	if fx.ReleaseUnheld {
		if w.claim > 0 || w.admitting || w.unheld {
			w.t.Fatal("unheld rows are released beside a claim")
		}
		w.unheld, w.held = true, map[int64]bool{}
		for _, id := range fx.Held {
			w.held[id] = true
		}
		for id, done := range w.runs {
			if !done && !w.held[id] {
				w.t.Fatalf("running row %d would be released as unheld", id)
			}
		}
	}
	if fx.Claim > 0 {
		if w.claim > 0 || w.admitting || w.unheld || w.draining {
			w.t.Fatal("a claim at the wrong time")
		}
		w.claim = fx.Claim
		w.asks++
		w.leavesOut(fx)
	}
	if fx.AskRunning {
		w.asked, w.list = true, slices.Sorted(maps.Keys(w.runs))
	}
	w.drained = w.drained || fx.Drained
	w.mustCountPaces()
}

// mustCountPaces expects that the counts of slow runs are those of the runs there are.
func (w *world) mustCountPaces() {
	running, slow := map[*pace]int{}, 0
	for _, h := range w.core.running {
		if running[h.pace]++; !h.pace.quick() {
			slow++
		}
	}
	p := &w.core.paces
	if p.slow != slow || p.others.running != running[&p.others] || p.ending.running != running[&p.ending] {
		w.t.Fatalf("%d runs are slow, %d not known, %d to be ended, but counted are %d, %d and %d",
			slow, running[&p.others], running[&p.ending], p.slow, p.others.running, p.ending.running)
	}
	for ref, of := range p.of {
		if of.running != running[of] {
			w.t.Fatalf("%d runs begin at %v, counted were %d", running[of], ref, of.running)
		}
	}
}

func (w *world) answerClaim(t *rapid.T) {
	if w.claim == 0 {
		return
	}
	asked := w.claim
	w.claim = 0
	var rows, limited []pg.Claimed
	for range rapid.IntRange(0, asked).Draw(t, "rows") {
		row := pg.Claimed{ID: w.pick(t), Machine: rapid.SampledFrom([]string{"m", "m", "m", "strange"}).Draw(t, "machine")}
		w.owned[row.ID], w.askedIn[row.ID] = true, w.asks
		w.claims[row.ID]++
		row.Claim = w.claims[row.ID]
		delete(w.admitted, row.ID)
		row.ConcurrencyKey = rapid.SampledFrom([]string{"", "", "k", "g:a", "g:b"}).Draw(t, "key")
		row.RateLimit = rapid.SampledFrom([]string{"", "", "", "r", "r:a"}).Draw(t, "rate")
		if row.ConcurrencyKey > "" && row.ConcurrencyKey != "k" {
			provisional := int16(pg.ProvisionalShard)
			row.ConcurrencyShard = &provisional
		}
		if rapid.IntRange(0, 9).Draw(t, "cancel") == 0 {
			row.CancelReason = &row.Machine
		}
		if _, limits := asks(&row); limits {
			limited = append(limited, row)
		} else {
			rows = append(rows, row)
		}
	}
	switch rapid.IntRange(0, 9).Draw(t, "fate of the claim") {
	case 0: // rows are claimed, nobody is told
		w.on(ClaimResult{Err: errors.New("connection lost"), Unknown: true})
	case 1:
		for _, r := range append(rows, limited...) {
			w.disown(r.ID)
		}
		w.on(ClaimResult{Err: errors.New("refused")})
	default:
		w.pending, w.admitting = limited, len(limited) > 0
		w.on(ClaimResult{Rows: rows, Pending: len(limited), Took: time.Millisecond})
	}
}

// leavesOut expects that a claim which is made when no rows are on their way back looks at the keys that were freed.
func (w *world) leavesOut(fx *Effects) {
	if w.core.releasing > 0 {
		return
	}
	for key := range w.freed {
		if e := w.core.limits.denied[limitKey{limiter.KindGate, key}]; e != nil && e.closed {
			w.t.Fatalf("a claim leaves out %q, of which a slot came free since it was full: %v", key, fx.Limits.BusyGates)
		}
	}
}

// answerAdmission lets the limiter decide about what was claimed, or fail with the rows or without.
func (w *world) answerAdmission(t *rapid.T) {
	if !w.admitting {
		return
	}
	e := AdmitResult{Rows: w.pending}
	w.pending, w.admitting = nil, false
	switch rapid.IntRange(0, 9).Draw(t, "fate of the admission") {
	case 0:
		e.Err = errors.New("nobody has decided")
	case 1: // whoever had the rows is gone
		e = AdmitResult{Err: errors.New("lost")}
	default:
		for i := range e.Rows {
			e.Decisions = append(e.Decisions, w.decide(t, &e.Rows[i]))
		}
	}
	if e.Err != nil {
		clear(w.freed) // nobody knows of these keys
	}
	w.on(e)
}

// decide draws what the limiter says of a row.
func (w *world) decide(t *rapid.T, row *pg.Claimed) limiter.Decision {
	q, _ := asks(row)
	d := limiter.Decision{Verdict: rapid.SampledFrom([]limiter.Verdict{
		limiter.Admitted, limiter.Admitted, limiter.Admitted, limiter.Saturated, limiter.Saturated, limiter.Contended, limiter.Unconfigured, limiter.NotOwned,
	}).Draw(t, "verdict")}
	switch {
	case d.Verdict == limiter.Admitted:
		w.admitted[row.ID] = true
		d.Shard = rapid.Int16Range(0, 3).Draw(t, "shard")
		return d
	case d.Verdict == limiter.NotOwned:
		clear(w.freed)
		return d
	case q.Gate != "" && (q.Rate == "" || rapid.Bool().Draw(t, "the gate denies")):
		d.By, d.Key, d.RetryIn = limiter.KindGate, q.Gate, -1
		delete(w.freed, q.Gate)
	default:
		d.By, d.Key = limiter.KindRate, q.Rate
		d.RetryIn = time.Duration(rapid.IntRange(-1, 100).Draw(t, "tokens in")) * time.Millisecond
	}
	return d
}

// pick returns a row to claim: a new one, or one that ran here before, perhaps with the report of its end on the way.
func (w *world) pick(t *rapid.T) int64 {
	if len(w.free) > 0 && rapid.Bool().Draw(t, "again") {
		i := rapid.IntRange(0, len(w.free)-1).Draw(t, "which")
		id := w.free[i]
		w.free = slices.Delete(w.free, i, i+1)
		return id
	}
	w.nextID++
	return w.nextID
}

func (w *world) disown(id int64) {
	if w.owned[id] {
		delete(w.owned, id)
		w.free = append(w.free, id)
	}
}

func (w *world) someRun(t *rapid.T) (int64, bool) {
	if len(w.runs) == 0 {
		return 0, false
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(w.runs))).Draw(t, "run"), true
}

func (w *world) endRun(t *rapid.T) {
	id, ok := w.someRun(t)
	if !ok {
		return
	}
	end := actors.StepEnded{ID: id, Claim: w.ran[id], Delay: -1, Took: time.Millisecond}
	end.Longest = time.Duration(rapid.IntRange(0, 60).Draw(t, "longest")) * time.Millisecond
	if !w.runs[id] {
		end.End = rapid.SampledFrom([]actors.StepEnd{
			actors.EndCommitted, actors.EndCommitted, actors.EndStale, actors.EndVanished, actors.EndAbandoned, actors.EndUnknown, actors.EndDenied, actors.EndCrowded,
		}).Draw(t, "end")
		switch end.End {
		case actors.EndCommitted, actors.EndStale:
			if h := w.core.running[id]; h == nil || !h.lost { // a lost one was disowned when it was lost
				w.disown(id)
			}
		case actors.EndVanished, actors.EndAbandoned:
			w.left[id] = true
		case actors.EndDenied: // its next step found the gate full
			end.Denied = limiter.Decision{Verdict: limiter.Saturated, By: limiter.KindGate, Key: "g:b", RetryIn: -1}
			delete(w.freed, "g:b")
		}
	}
	w.forgetRun(id)
	w.on(Ended{[]actors.StepEnded{end}})
}

func (w *world) forgetRun(id int64) {
	for _, of := range []map[int64]bool{w.runs, w.handed, w.resumed} {
		delete(of, id)
	}
	delete(w.turns, id)
	delete(w.wished, id)
	delete(w.wants, id)
}

// wish is that a run wants a slot.
type wish struct {
	at    time.Time
	chain bool
}

// answered takes the core's answer to a wish.
func (w *world) answered(r Resumed) {
	if _, runs := w.runs[r.ID]; !runs {
		return // it was lost with the steps actor, and the core does not know yet
	}
	asked, ok := w.wants[r.ID]
	if !ok || r.Turn != w.turns[r.ID] {
		w.t.Fatalf("row %d got an answer without asking: %+v", r.ID, r)
	}
	delete(w.wants, r.ID)
	if r.PutBack {
		if leaving := w.draining || w.core.Paused(); !asked.chain || !leaving && w.now.Sub(asked.at) < returnPatience {
			w.t.Fatalf("row %d is put back after %v", r.ID, w.now.Sub(asked.at))
		}
		return
	}
	delete(w.handed, r.ID)
	w.resumed[r.ID] = true
}

// handOver tells of some runs at once that their outcome is with a flusher.
func (w *world) handOver(t *rapid.T) {
	var rows []HandedRow
	for _, id := range slices.Sorted(maps.Keys(w.runs)) {
		h := w.core.running[id]
		if h == nil || !rapid.Bool().Draw(t, "handed over") {
			continue
		}
		if !w.handed[id] {
			w.handed[id] = true
			delete(w.resumed, id)
			w.turns[id]++
		} // else it is told late, or twice
		rows = append(rows, HandedRow{Row: h.row, Turn: w.turns[id], Took: time.Duration(rapid.IntRange(0, 1).Draw(t, "took")) * time.Millisecond})
	}
	w.on(Handed{Rows: rows})
}

// comeBack lets a run whose outcome was refused ask for a slot, perhaps twice.
func (w *world) comeBack(t *rapid.T) {
	for _, id := range slices.Sorted(maps.Keys(w.handed)) {
		if !w.runs[id] && rapid.IntRange(0, 4).Draw(t, "comes back") == 0 {
			if _, asked := w.wants[id]; !asked {
				if w.wished[id] == w.turns[id] {
					continue // it was put back: it asks no more
				}
				w.wished[id] = w.turns[id]
				w.wants[id] = wish{w.now, rapid.Bool().Draw(t, "chain")}
			}
			w.on(Returning{[]ReturningRow{{Row: w.core.running[id].row, Turn: w.turns[id], Chain: w.wants[id].chain}}})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.resumed)) {
		w.on(Returning{[]ReturningRow{{Row: w.core.running[id].row, Turn: w.turns[id]}}}) // said again while the grant was on its way
	}
}

func (w *world) answerRelease() {
	if len(w.releases) == 0 {
		return
	}
	claims := w.releases[0]
	w.releases = w.releases[1:]
	for _, r := range claims {
		if w.owned[r.ID] && w.claims[r.ID] == r.Claim { // else it was given back already, and may be claimed anew
			w.mustNotHold(r)
			w.disown(r.ID)
		}
	}
	w.on(ReleaseResult{})
}

// mustNotHold expects that a row which goes back to its queue is not worked on under that claim.
func (w *world) mustNotHold(r pg.ClaimRef) {
	for _, of := range []map[int64]*held{w.core.running, w.core.buffered, w.core.twins} {
		if h := of[r.ID]; h != nil && !h.lost && h.row != nil && h.row.Claim == r.Claim {
			w.t.Fatalf("row %d is given back and held", r.ID)
		}
	}
}

func (w *world) answerBeat(t *rapid.T) {
	ids := w.beat
	if ids == nil {
		return
	}
	w.beat = nil
	if rapid.IntRange(0, 9).Draw(t, "beat fails") == 0 {
		w.on(BeatResult{Err: errors.New("no")})
		return
	}
	var beats []pg.Beat
	for _, id := range ids {
		s := rapid.SampledFrom([]pg.BeatState{pg.Extended, pg.Extended, pg.Locked, pg.Lost}).Draw(t, "beat")
		if s == pg.Lost {
			if h := w.core.running[id]; h != nil && h.seq < w.core.beat.seq {
				w.disown(id)
			} else if h := w.core.buffered[id]; h != nil && h.seq < w.core.beat.seq {
				w.disown(id)
			}
		}
		beats = append(beats, pg.Beat{ID: id, State: s})
	}
	w.on(BeatResult{Beats: beats})
}

func (w *world) answerUnheld(fails bool) {
	if !w.unheld {
		return
	}
	w.unheld = false
	if fails {
		w.on(UnheldResult{Err: errors.New("no")})
		return
	}
	for id := range w.owned {
		if !w.held[id] {
			w.disown(id)
		}
	}
	w.on(UnheldResult{})
}

func (w *world) answerExtend() {
	if len(w.extends) > 0 {
		id := w.extends[0]
		w.extends = w.extends[1:]
		w.on(ExtendResult{Beat: pg.Beat{ID: id}})
	}
}

func (w *world) answerRunning() {
	if w.asked {
		w.asked = false
		var ids []int64
		for _, id := range w.list {
			if _, running := w.runs[id]; running {
				ids = append(ids, id)
			}
		}
		w.on(Running{IDs: ids})
	}
}

// settle answers everything until nothing is under way any more.
func (w *world) settle(t *rapid.T) {
	for n := 0; ; n++ {
		if n > 10000 {
			t.Fatal("the core never comes to rest")
		}
		switch {
		case w.claim > 0:
			w.claim = 0
			w.on(ClaimResult{})
		case w.admitting:
			w.answerAdmission(t)
		case len(w.releases) > 0:
			w.answerRelease()
		case w.beat != nil:
			ids := w.beat
			w.beat = nil
			var beats []pg.Beat
			for _, id := range ids {
				beats = append(beats, pg.Beat{ID: id})
			}
			w.on(BeatResult{Beats: beats})
		case w.unheld:
			w.answerUnheld(false)
		case len(w.extends) > 0:
			w.answerExtend()
		case w.asked:
			w.answerRunning()
		case len(w.runs) > 0:
			for id := range w.runs {
				w.forgetRun(id)
				w.disown(id)
				w.on(Ended{[]actors.StepEnded{{ID: id, Delay: -1}}})
				break
			}
		case w.core.Buffered() > 0, !w.drained && w.now.Before(w.core.unheld.until.Add(time.Minute)):
			w.now = later(w.now, w.wake)
			w.on(Tick{})
		default:
			return
		}
	}
}
