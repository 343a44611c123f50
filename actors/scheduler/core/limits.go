package core

import (
	"slices"
	"time"

	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

const (
	// manyKeys is how many keys of one limit are remembered one by one; maxDenied how many of all.
	manyKeys  = 64
	maxDenied = 1000
	// elsewhereKeys is both when the counters are not in the database: what is not remembered then is claimed and denied over
	// and over. A claim that leaves out so many keys carries them as a parameter: of 30 bytes each, a third of a megabyte, which took
	// Postgres 3 ms to parse. maxKeyBytes bounds it whatever their length. They take the process about two megabytes a queue.
	elsewhereKeys = 10_000
	maxKeyBytes   = 512 << 10
	// openEvery, for each key remembered, is how far apart keys of such counters open: each opening is a claim.
	openEvery = 10 * time.Microsecond
	// A gate that was full is tried again after gateFirst, doubling up to gateMost while it stays full. A slot that is
	// given back in this process opens it at once.
	gateFirst = 100 * time.Millisecond
	gateMost  = 5 * time.Second
	// A limit that others were at is tried again after contendedFirst, doubling up to contendedMost.
	contendedFirst = 5 * time.Millisecond
	contendedMost  = time.Second
	// rateLeast gathers a few tokens of a fast rate, rateMost looks again after a rate whose time is not known.
	rateLeast = 2 * time.Millisecond
	rateMost  = 5 * time.Second
	// denialKept is how long a denial is remembered after it was lifted; ratesProbed how long rows of a rate with many
	// exhausted keys are judged one by one.
	denialKept  = time.Minute
	ratesProbed = time.Minute
	// maxQuota is from when on a rate's rows are no more counted.
	maxQuota = 512
)

// limits is what is known of limits: which gates there are, and which limits had nothing left when rows asked for them.
// Such rows are left out of the next claims, so that they neither fill them nor are claimed and given back over and over.
type limits struct {
	gates map[string]bool // names in force
	// elsewhere: no claim can read the counters, so nothing is probed.
	elsewhere    bool
	most, ofName int // keys that are remembered: of all names, of one
	// denied has an entry for each key that denied a row lately. Invariant: at most most, ofName of one name, and maxKeyBytes.
	denied  map[limitKey]*denial
	perName map[limiter.Name]int // entries of denied
	bytes   int                  // of their keys
	// forgot: keys denied rows and are not remembered, although no claim can judge them. inVain counts how often in a row that
	// was all that came of a claim.
	forgot bool
	inVain int
	// probed are names whose rows the claim judges by the counters: gates from the first denial on, for good; rates with
	// more exhausted keys than are remembered, until then.
	probed map[limiter.Name]time.Time
	// unknown are names of rates that are configured nowhere, until the limits in force change. Invariant: at most maxDenied.
	unknown map[string]bool
	// rates are those in force, as far as inForce has told.
	rates map[string]limiter.Rate
	// meanwhile are gates' keys of which slots came free while a claim was on its way: what the limiter says of them may be
	// older than that. Invariant: at most most.
	meanwhile map[string]bool
	// claim is all of this as a claim takes it; nil = to be made anew.
	claim *pg.ClaimLimits
	// soonest is when the clock has something to do here: the least until of a closed entry, or earlier. Zero = nothing.
	soonest time.Time
}

type limitKey struct {
	kind limiter.Kind
	key  string
}

func (k limitKey) name() limiter.Name { return limiter.Name{Kind: k.kind, Name: limiter.NameOf(k.key)} }

// denial is what is remembered of a key.
type denial struct {
	// closed: its rows are left out until then. Afterwards the entry stays for a while for the two below.
	closed bool
	until  time.Time
	// strikes counts denials in a row without a grant.
	strikes int
	// quota is how many of a rate's rows the next claim takes at most: about as many as were admitted the last time.
	quota int
	last  time.Time // of the last denial
}

func newLimits(gates []string, elsewhere bool) limits {
	l := limits{elsewhere: elsewhere, most: maxDenied, ofName: manyKeys, denied: map[limitKey]*denial{}, perName: map[limiter.Name]int{}, probed: map[limiter.Name]time.Time{}, unknown: map[string]bool{}, meanwhile: map[string]bool{}}
	if elsewhere {
		l.most, l.ofName = elsewhereKeys, elsewhereKeys
	}
	l.setGates(gates)
	return l
}

func (l *limits) setGates(names []string) {
	l.gates = make(map[string]bool, len(names))
	for _, n := range names {
		l.gates[n] = true
	}
	l.claim = nil
}

// asks says what a claimed row has to be admitted to; nothing = false. One that is to be ended takes neither slot nor tokens.
func asks(row *pg.Claimed) (limiter.Request, bool) {
	if row.CancelReason != nil {
		return limiter.Request{}, false
	}
	r := limiter.Request{ID: row.ID, Claim: row.Claim, Rate: row.RateLimit, Weight: row.Weight}
	if row.ConcurrencyShard != nil && *row.ConcurrencyShard < 0 {
		r.Gate = row.ConcurrencyKey
	}
	return r, r.Gate != "" || r.Rate != ""
}

// Limited splits claimed rows into those that may run, and those that the limiter has to admit first with what they ask for.
// Both keep their order. It reuses the slice.
func Limited(rows []pg.Claimed) (free, limited []pg.Claimed, requests []limiter.Request) {
	free = rows[:0]
	for i := range rows {
		r, limits := asks(&rows[i])
		if !limits {
			if len(limited) > 0 {
				free = append(free, rows[i])
			} else {
				free = rows[:i+1]
			}
			continue
		}
		limited, requests = append(limited, rows[i]), append(requests, r)
	}
	return free, limited, requests
}

// deny notes the answer for a row that was not admitted. granted is how many rows of the key were admitted in the same call.
func (l *limits) deny(key limitKey, d limiter.Decision, granted int, now time.Time, jitter float64) {
	l.claim = nil
	if d.Verdict == limiter.Unconfigured {
		switch {
		case key.kind == limiter.KindGate:
			delete(l.gates, limiter.NameOf(key.key)) // its keys are as any others now
		case len(l.unknown) < maxDenied:
			l.unknown[limiter.NameOf(key.key)] = true
		}
		return
	}
	e := l.entry(key, now)
	if e == nil {
		return
	}
	if granted > 0 {
		e.strikes = 0
	}
	var wait time.Duration
	switch {
	case d.Verdict != limiter.Saturated:
		wait = time.Duration(float64(doubled(contendedFirst, e.strikes, contendedMost)) * (0.5 + jitter))
	case key.kind == limiter.KindGate:
		l.probe(key.name(), time.Time{})
		wait = doubled(gateFirst, e.strikes, gateMost)
		if l.meanwhile[key.key] {
			wait = 0
		}
	default:
		wait = max(d.RetryIn, rateLeast)
		if d.RetryIn < 0 {
			wait = rateMost
		}
		e.quota = max(granted, 1)
	}
	e.strikes++
	e.closed, e.until, e.last = true, now.Add(wait), now
	if l.elsewhere {
		apart := time.Duration(len(l.denied)) * openEvery
		e.until = e.until.Add(e.until.Truncate(apart).Add(apart).Sub(e.until)) // by the monotonic clock
	}
	if l.soonest.IsZero() || e.until.Before(l.soonest) {
		l.soonest = e.until
	}
}

func doubled(first time.Duration, times int, most time.Duration) time.Duration {
	return min(first<<min(times, 10), most)
}

// probe has rows of a name judged by the counters, until then.
func (l *limits) probe(name limiter.Name, until time.Time) {
	if !l.elsewhere {
		l.probed[name] = until
	}
}

// entry returns the key's entry, or nil when it has none and there are too many: then its whole name is judged by the
// counters, or forgot is set.
func (l *limits) entry(key limitKey, now time.Time) *denial {
	if e := l.denied[key]; e != nil {
		return e
	}
	name := key.name()
	if l.perName[name] >= l.ofName || len(l.denied) >= l.most || l.bytes+len(key.key) > maxKeyBytes {
		var until time.Time
		if key.kind == limiter.KindRate {
			until = now.Add(ratesProbed)
		}
		l.probe(name, until)
		l.forgot = l.elsewhere
		return nil
	}
	e := new(denial)
	l.denied[key] = e
	l.perName[name]++
	l.bytes += len(key.key)
	return e
}

// grant notes that rows of a key were admitted and none was denied.
func (l *limits) grant(key limitKey) {
	e := l.denied[key]
	if e == nil {
		return
	}
	e.strikes = 0
	if e.quota *= 2; e.quota > maxQuota {
		l.forget(key)
	}
	l.claim = nil
}

func (l *limits) forget(key limitKey) {
	delete(l.denied, key)
	l.bytes -= len(key.key)
	name := key.name()
	if l.perName[name]--; l.perName[name] <= 0 {
		delete(l.perName, name)
	}
	l.claim = nil
}

// due opens what the clock opens; true = there is something to claim, perhaps. It is not called while rows are on their way
// back: claimed meanwhile, those behind them would overtake them.
func (l *limits) due(now time.Time) (opened bool) {
	if l.soonest.IsZero() || l.soonest.After(now) {
		return false
	}
	l.soonest = time.Time{}
	for key, e := range l.denied {
		switch {
		case e.closed && !e.until.After(now):
			e.closed, opened, l.claim = false, true, nil
		case e.closed:
			if l.soonest.IsZero() || e.until.Before(l.soonest) {
				l.soonest = e.until
			}
		case now.Sub(e.last) > denialKept:
			l.forget(key)
		}
	}
	for name, until := range l.probed {
		if !until.IsZero() && !until.After(now) {
			delete(l.probed, name)
			l.claim = nil
		}
	}
	return opened
}

// freed opens gates' keys of which slots came free; true = somebody may have waited for one of them.
func (l *limits) freed(keys []string, now time.Time) (wanted bool) {
	wanted = l.inVain > 0 // perhaps by one that is not remembered
	for _, key := range keys {
		k := limitKey{limiter.KindGate, key}
		if len(l.meanwhile) < l.most {
			l.meanwhile[key] = true
		}
		if e := l.denied[k]; e != nil {
			wanted, e.strikes = true, 0
			if e.closed {
				e.until, l.soonest = now, now
			}
		}
		if _, probed := l.probed[k.name()]; probed {
			wanted = true
		}
	}
	return wanted
}

// inForce takes over the limits in force; true = they have changed, or some rows waited for any change.
func (l *limits) inForce(c limiter.Config) (changed bool) {
	names := c.GateNames()
	changed = len(names) != len(l.gates) || slices.ContainsFunc(names, func(n string) bool { return !l.gates[n] })
	if changed {
		l.setGates(names)
	}
	for _, r := range c.Rates {
		if l.unknown[r.Name] {
			delete(l.unknown, r.Name)
			changed, l.claim = true, nil
		}
	}
	rates := make(map[string]limiter.Rate, len(c.Rates))
	for _, r := range c.Rates {
		rates[r.Name] = r
	}
	for key, e := range l.denied { // what a denied row was told to wait for was reckoned with the old rate
		if name := limiter.NameOf(key.key); key.kind == limiter.KindRate && e.closed && rates[name] != l.rates[name] {
			e.closed, changed, l.claim = false, true, nil
		}
	}
	l.rates = rates
	return changed
}

// forClaim is what the next claim leaves out. It is not changed afterwards.
func (l *limits) forClaim() *pg.ClaimLimits {
	clear(l.meanwhile)
	if l.claim != nil {
		return l.claim
	}
	var gates, busy, spent, unknown, probedGates, probedRates []string
	for n := range l.gates {
		gates = append(gates, n)
	}
	c := &pg.ClaimLimits{}
	for key, e := range l.denied {
		switch {
		case e.closed && key.kind == limiter.KindGate:
			busy = append(busy, key.key)
		case e.closed:
			spent = append(spent, key.key)
		case e.quota > 0:
			if c.RateQuotas == nil {
				c.RateQuotas = map[string]int{}
			}
			c.RateQuotas[key.key] = e.quota
		}
	}
	for n := range l.unknown {
		unknown = append(unknown, n)
	}
	for n := range l.probed {
		if n.Kind == limiter.KindGate {
			probedGates = append(probedGates, n.Name)
		} else {
			probedRates = append(probedRates, n.Name)
		}
	}
	c.Gates, c.BusyGates, c.ProbedGates = pg.NamesOf(gates...), pg.NamesOf(busy...), pg.NamesOf(probedGates...)
	c.SpentRates, c.UnknownRates, c.ProbedRates = pg.NamesOf(spent...), pg.NamesOf(unknown...), pg.NamesOf(probedRates...)
	l.claim = c
	return c
}

// pause is how long to wait before the next claim: one that brings only rows of keys that cannot be remembered would bring them
// again.
func (l *limits) pause(inVain bool) time.Duration {
	if !inVain || !l.forgot {
		l.inVain = 0
		return 0
	}
	l.inVain++
	return doubled(gateFirst, l.inVain-1, contendedMost)
}

// onAdmit takes the rows that were admitted and gives the others back.
func (c *Core) onAdmit(e AdmitResult, now time.Time) {
	s := &c.supply
	if !s.claim.inFlight || !s.claim.admitting {
		return
	}
	s.claim.admitting = false
	if e.Err != nil && len(e.Rows) == 0 {
		c.suspect(now) // nobody has the rows
	}
	granted := map[limitKey]int{}
	both := func(r *pg.Claimed, f func(limitKey)) {
		q, _ := asks(r)
		if q.Gate != "" {
			f(limitKey{limiter.KindGate, q.Gate})
		}
		if q.Rate != "" {
			f(limitKey{limiter.KindRate, q.Rate})
		}
	}
	decided := e.Err == nil && len(e.Decisions) == len(e.Rows)
	for i := range e.Rows {
		if decided && e.Decisions[i].Verdict == limiter.Admitted {
			both(&e.Rows[i], func(k limitKey) { granted[k]++ })
		}
	}
	c.limits.forgot = false
	denied := map[limitKey]bool{}
	deny := func(k limitKey, d limiter.Decision) {
		if !denied[k] {
			denied[k] = true
			c.limits.deny(k, d, granted[k], now, c.cfg.Jitter())
		}
	}
	usable := 0
	idle := len(c.running) == 0
	paused := len(e.Rows) > 0 && c.claimedInPause(s.claim.seq)
	for i := range e.Rows {
		row := &e.Rows[i]
		d := limiter.Decision{Verdict: limiter.Contended}
		if decided {
			d = e.Decisions[i]
		}
		switch {
		case d.Verdict == limiter.Admitted && paused: // the release gives back the slot as well
			c.giveBack(e.Rows[i : i+1])
			continue
		case d.Verdict == limiter.Admitted:
			if q, _ := asks(row); q.Gate != "" {
				row.ConcurrencyShard = &d.Shard
			}
			if c.take(row, now) {
				usable++
			}
			continue
		case d.By != "":
			deny(limitKey{d.By, d.Key}, d)
		default: // not ours any more, or nobody has decided
			both(row, func(k limitKey) { deny(k, d) })
		}
		c.release(row)
	}
	c.beatSoon(now)
	for k := range granted {
		if !denied[k] {
			c.limits.grant(k)
		}
	}
	if usable > 0 && idle {
		c.demand.began(now)
	}
	if wait := c.limits.pause(usable == 0 && !s.claim.free); wait > 0 {
		s.retryAt = now.Add(wait)
	}
	c.claimed(now)
}
