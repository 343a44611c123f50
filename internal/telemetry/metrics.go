package telemetry

import (
	"sync/atomic"

	"github.com/gendurable/gendurable/actors"
)

// Kind is what an instrument is.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"   // observed, rises only
	Gauge     Kind = "gauge"     // observed
	Histogram Kind = "histogram" // recorded
)

// Metric is a row of the contract.
type Metric struct {
	Name       string
	Kind       Kind
	Unit       string
	Attributes []string // besides AttrEngine, which all have
	Help       string
}

// series is a counter under a value of the metric's first own attribute; empty = it has none.
type series[C any] struct {
	value string
	of    func(*C) *atomic.Int64
}

// observed is a metric that is read from counters.
type observed[C any] struct {
	Metric
	series []series[C]
}

func one[C any](name string, kind Kind, unit, help string, of func(*C) *atomic.Int64) observed[C] {
	return observed[C]{Metric{Name: name, Kind: kind, Unit: unit, Help: help}, []series[C]{{of: of}}}
}

type (
	engine = actors.Counters
	queue  = actors.QueueCounters
	limits = actors.LimitCounters
)

// ofEngine are the metrics of an engine's counters.
var ofEngine = []observed[engine]{
	one("gendurable.flushes", Counter, "{flush}", "committed group commits", func(c *engine) *atomic.Int64 { return &c.Flushes }),
	one("gendurable.outcomes", Counter, "{outcome}", "outcomes in committed flushes", func(c *engine) *atomic.Int64 { return &c.Outcomes }),
	one("gendurable.flush.largest", Gauge, "{outcome}", "most outcomes in one flush since the start", func(c *engine) *atomic.Int64 { return &c.LargestFlush }),
	one("gendurable.outcomes.stale", Counter, "{outcome}", "outcomes of rows that their worker had lost; nothing of them was written", func(c *engine) *atomic.Int64 { return &c.Stale }),
	one("gendurable.outcomes.cancelled", Counter, "{outcome}", "outcomes turned into a failure by a cancel", func(c *engine) *atomic.Int64 { return &c.Cancelled }),
	one("gendurable.outcomes.refused", Counter, "{outcome}", "outcomes whose content the database refused", func(c *engine) *atomic.Int64 { return &c.Refused }),
	one("gendurable.outcomes.dropped", Counter, "{outcome}", "outcomes dropped unsent because nobody waited any more", func(c *engine) *atomic.Int64 { return &c.Dropped }),
	one("gendurable.flush.splits", Counter, "{flush}", "flushes that failed and were cut in pieces", func(c *engine) *atomic.Int64 { return &c.Splits }),
	one("gendurable.flush.retries", Counter, "{flush}", "flushes repeated because the database was away", func(c *engine) *atomic.Int64 { return &c.FlushRetries }),
	one("gendurable.slow_lane", Counter, "{outcome}", "outcomes retried alone because somebody held their row", func(c *engine) *atomic.Int64 { return &c.SlowLane }),
	one("gendurable.slow_lane.waiting", Gauge, "{outcome}", "of those, how many wait now", func(c *engine) *atomic.Int64 { return &c.SlowLaneNow }),
	one("gendurable.actor.panics", Counter, "{panic}", "panics inside actors", func(c *engine) *atomic.Int64 { return &c.Panics }),
	one("gendurable.actor.restarts", Counter, "{restart}", "restarts of actors", func(c *engine) *atomic.Int64 { return &c.Restarts }),
	one("gendurable.pokes", Counter, "{poke}", "announcements of work sent to schedulers", func(c *engine) *atomic.Int64 { return &c.Pokes }),
	one("gendurable.pokes.merged", Counter, "{poke}", "announcements that were one with an earlier one", func(c *engine) *atomic.Int64 { return &c.PokesMerged }),
	{Metric{"gendurable.notices", Counter, "{notice}", []string{AttrResult}, "announcements between processes (PokePostgres)"}, []series[engine]{
		{"sent", func(c *engine) *atomic.Int64 { return &c.NoticesSent }},
		{"heard", func(c *engine) *atomic.Int64 { return &c.NoticesHeard }},
		{"refused", func(c *engine) *atomic.Int64 { return &c.NoticesRefused }},
		{"failed", func(c *engine) *atomic.Int64 { return &c.NoticeErrors }},
	}},
	one("gendurable.listeners.lost", Counter, "{connection}", "listening connections lost or not to be had", func(c *engine) *atomic.Int64 { return &c.ListenersLost }),
	one("gendurable.awaits.waiting", Gauge, "{caller}", "callers of Await that wait now", func(c *engine) *atomic.Int64 { return &c.AwaitingNow }),
	one("gendurable.awaits.pushed", Counter, "{caller}", "callers of Await answered by a local commit", func(c *engine) *atomic.Int64 { return &c.AwaitPushed }),
	one("gendurable.awaits.probes", Counter, "{query}", "queries made for the other callers of Await", func(c *engine) *atomic.Int64 { return &c.AwaitProbes }),
	one("gendurable.reaped", Counter, "{row}", "rows given back because their lease had expired", func(c *engine) *atomic.Int64 { return &c.Reaped }),
	one("gendurable.await.timeouts", Counter, "{row}", "awaits that timed out", func(c *engine) *atomic.Int64 { return &c.DeadlinesWoken }),
	one("gendurable.reclaimed", Counter, "{row}", "rows taken back from a node that was found dead", func(c *engine) *atomic.Int64 { return &c.Reclaimed }),
	one("gendurable.sweep.errors", Counter, "{error}", "failed statements of reaper, gc and node", func(c *engine) *atomic.Int64 { return &c.SweepErrors }),
	{Metric{"gendurable.swept", Counter, "{row}", []string{AttrResult}, "rows deleted after their retention"}, []series[engine]{
		{"instances", func(c *engine) *atomic.Int64 { return &c.Collected }},
		{"side tables", func(c *engine) *atomic.Int64 { return &c.CollectedSide }},
	}},
	one("gendurable.vacuums", Counter, "{vacuum}", "runs of VACUUM by the gc", func(c *engine) *atomic.Int64 { return &c.Vacuums }),
	one("gendurable.gateway.requests", Counter, "{request}", "requests that the gateway got", func(c *engine) *atomic.Int64 { return &c.GatewayRequests }),
	one("gendurable.gateway.refused", Counter, "{request}", "of those, how many it refused, for whatever reason", func(c *engine) *atomic.Int64 { return &c.GatewayRefused }),
	one("gendurable.gateway.busy", Counter, "{request}", "of those refused, how many it had no hands for", func(c *engine) *atomic.Int64 { return &c.GatewayBusy }),
	one("gendurable.gateway.dropped", Counter, "{reply}", "replies that were not sent, because too much waited for a peer that does not read", func(c *engine) *atomic.Int64 { return &c.GatewayDropped }),
	one("gendurable.gateway.in_hand", Gauge, "{request}", "requests that the gateway is at work on", func(c *engine) *atomic.Int64 { return &c.GatewayInHandNow }),
	one("gendurable.cron.inserted", Counter, "{row}", "instances inserted for an occurrence of a periodic insertion", func(c *engine) *atomic.Int64 { return &c.CronInserted }),
}

// ofQueue are the metrics of a queue's counters; all have AttrQueue.
var ofQueue = []observed[queue]{
	one("gendurable.queue.running", Gauge, "{row}", "rows that hold a slot", func(c *queue) *atomic.Int64 { return &c.RunningNow }),
	one("gendurable.queue.buffered", Gauge, "{row}", "rows claimed ahead that wait for a slot", func(c *queue) *atomic.Int64 { return &c.BufferedNow }),
	one("gendurable.queue.committing", Gauge, "{row}", "rows without a slot: their step has ended and its outcome is being committed, or their next step or error handler waits for one", func(c *queue) *atomic.Int64 { return &c.CommittingNow }),
	one("gendurable.queue.abandoned", Gauge, "{goroutine}", "goroutines of steps that were given up and still run", func(c *queue) *atomic.Int64 { return &c.AbandonedNow }),
	one("gendurable.queue.unknown_steps", Gauge, "{step}", "steps (machine, version, step) that this process cannot run", func(c *queue) *atomic.Int64 { return &c.UnknownSteps }),
	one("gendurable.claims", Counter, "{claim}", "claim statements (picks) that succeeded", func(c *queue) *atomic.Int64 { return &c.Claims }),
	one("gendurable.claims.empty", Counter, "{claim}", "of those, how many found nothing", func(c *queue) *atomic.Int64 { return &c.EmptyClaims }),
	one("gendurable.claims.rows", Counter, "{row}", "rows claimed", func(c *queue) *atomic.Int64 { return &c.ClaimedRows }),
	one("gendurable.claims.largest", Gauge, "{row}", "most rows in one claim since the start", func(c *queue) *atomic.Int64 { return &c.LargestClaim }),
	one("gendurable.claims.errors", Counter, "{claim}", "claims that failed", func(c *queue) *atomic.Int64 { return &c.ClaimErrors }),
	one("gendurable.claims.contended", Counter, "{claim}", "claims that lost the race for a concurrency key and were made again", func(c *queue) *atomic.Int64 { return &c.Contended }),
	{Metric{"gendurable.steps", Counter, "{step}", []string{AttrEnd}, "steps, by how they ended"}, []series[queue]{
		{"committed", func(c *queue) *atomic.Int64 { return &c.Committed }},
		{"continued", func(c *queue) *atomic.Int64 { return &c.Continued }},
		{"stale", func(c *queue) *atomic.Int64 { return &c.Stale }},
		{"vanished", func(c *queue) *atomic.Int64 { return &c.Vanished }},
		{"abandoned", func(c *queue) *atomic.Int64 { return &c.Abandoned }},
		{"unknown", func(c *queue) *atomic.Int64 { return &c.GivenBack }},
	}},
	one("gendurable.steps.yielded", Counter, "{chain}", "inline chains that went back to their queue", func(c *queue) *atomic.Int64 { return &c.Yielded }),
	one("gendurable.steps.not_run", Counter, "{row}", "rows failed instead of run: cancelled, too many crashes or attempts", func(c *queue) *atomic.Int64 { return &c.NotRun }),
	one("gendurable.leases.lost", Counter, "{row}", "rows that a heartbeat found lost", func(c *queue) *atomic.Int64 { return &c.Lost }),
	one("gendurable.rows.released", Counter, "{row}", "claimed rows given back untouched", func(c *queue) *atomic.Int64 { return &c.Released }),
	one("gendurable.rows.unheld", Counter, "{row}", "claimed rows given back that nobody had been told of", func(c *queue) *atomic.Int64 { return &c.Unheld }),
	one("gendurable.rows.denied", Counter, "{row}", "rows given back because a limit had nothing left for them", func(c *queue) *atomic.Int64 { return &c.Denied }),
}

// concurrency is the one metric of a queue that no counter has.
var concurrency = Metric{"gendurable.queue.concurrency", Gauge, "{row}", nil, "slots of the queue in this process"}

// ofLimits are the metrics of the limiter's counters; there are none without a limiter.
var ofLimits = []observed[limits]{
	one("gendurable.limiter.admissions", Counter, "{call}", "calls for admission", func(c *limits) *atomic.Int64 { return &c.Admissions }),
	one("gendurable.limiter.admitted", Counter, "{row}", "rows admitted", func(c *limits) *atomic.Int64 { return &c.AdmittedRows }),
	one("gendurable.limiter.throttled", Counter, "{row}", "claimed rows denied by a limit and given back", func(c *limits) *atomic.Int64 { return &c.DeniedRows }),
	one("gendurable.limiter.contended", Counter, "{row}", "of those, how many met a limit that others were using just then", func(c *limits) *atomic.Int64 { return &c.Contended }),
	one("gendurable.limiter.unknown", Counter, "{row}", "rows denied because their limit does not exist", func(c *limits) *atomic.Int64 { return &c.Unconfigured }),
	one("gendurable.limiter.credits", Counter, "{call}", "calls that gave slots back", func(c *limits) *atomic.Int64 { return &c.Credits }),
	one("gendurable.limiter.credited", Counter, "{slot}", "slots given back", func(c *limits) *atomic.Int64 { return &c.CreditedSlots }),
	one("gendurable.limiter.credit_retries", Counter, "{call}", "credits that failed and were repeated", func(c *limits) *atomic.Int64 { return &c.CreditRetries }),
	one("gendurable.limiter.slots.held", Gauge, "{slot}", "slots admitted here and not given back", func(c *limits) *atomic.Int64 { return &c.HeldNow }),
	one("gendurable.limiter.slots.uncredited", Gauge, "{slot}", "slots given back that the backend does not have yet", func(c *limits) *atomic.Int64 { return &c.UncreditedNow }),
	one("gendurable.limiter.reconciles", Counter, "{reconcile}", "completed reconciles", func(c *limits) *atomic.Int64 { return &c.Reconciles }),
	one("gendurable.limiter.healed", Counter, "{slot}", "slots that nobody held, found by a reconcile", func(c *limits) *atomic.Int64 { return &c.Healed }),
	one("gendurable.limiter.swept", Counter, "{key}", "idle keys forgotten", func(c *limits) *atomic.Int64 { return &c.Swept }),
	one("gendurable.limiter.errors", Counter, "{error}", "calls of the backend other than credits that failed", func(c *limits) *atomic.Int64 { return &c.Errors }),
}

// The metrics that are recorded as it happens.
var (
	flushSize     = Metric{"gendurable.flush.size", Histogram, "{outcome}", nil, "outcomes in a committed flush"}
	flushDuration = Metric{"gendurable.flush.duration", Histogram, "s", nil, "how long a committed flush took, its round trip included"}
	claimDuration = Metric{"gendurable.claim.duration", Histogram, "s", []string{AttrQueue}, "how long a claim took"}
	queueLatency  = Metric{"gendurable.queue.latency", Histogram, "s", []string{AttrQueue}, "how long a row had been eligible when it was claimed"}
	stepDuration  = Metric{"gendurable.step.duration", Histogram, "s", []string{AttrQueue, AttrMachine, AttrStep, AttrOutcome}, "how long the code of a step ran"}
	drainDuration = Metric{"gendurable.drain.duration", Histogram, "s", []string{AttrResult}, "how long the drain of a stop took"}
)

// Metrics lists the contract: all that an engine exports, the limiter's included.
func Metrics() []Metric {
	var all []Metric
	for _, m := range ofEngine {
		all = append(all, m.Metric)
	}
	for _, m := range ofQueue {
		all = append(all, onQueue(m.Metric))
	}
	all = append(all, onQueue(concurrency))
	for _, m := range ofLimits {
		all = append(all, m.Metric)
	}
	return append(all, flushSize, flushDuration, claimDuration, queueLatency, stepDuration, drainDuration)
}

func onQueue(m Metric) Metric {
	m.Attributes = append([]string{AttrQueue}, m.Attributes...)
	return m
}
