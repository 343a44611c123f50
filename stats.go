package gendurable

import (
	"reflect"
	"sync/atomic"

	"github.com/gendurable/gendurable/cluster"
)

// Stats are what an engine has counted since its start. Those ending in Now are gauges. See docs/operations.md for
// what they tell an operator.
type Stats struct {
	// Panics are panics inside actors, Restarts the restarts that followed.
	Panics, Restarts int64

	// Flushes are committed transactions, Outcomes the outcomes in them, LargestFlush the most in one.
	Flushes, Outcomes, LargestFlush int64
	// Stale are outcomes of rows that their worker had lost, Cancelled those turned into a failure by a cancel.
	Stale, Cancelled int64
	// Splits are flushes that failed and were cut in pieces; Refused are outcomes whose content the database refused.
	Splits, Refused int64
	// SlowLane are outcomes whose row somebody else had locked and that were retried alone.
	SlowLane, SlowLaneNow int64
	// FlushRetries are flushes repeated because the connection was lost or the database was away.
	FlushRetries int64
	// Dropped are outcomes dropped before they were sent because nobody waited for them any more.
	Dropped int64

	// Pokes are messages sent to schedulers, PokesMerged announcements that were one with an earlier one.
	Pokes, PokesMerged int64

	// NoticesSent are announcements sent to other processes, NoticesHeard those that came from them, NoticesRefused
	// notifications that were none. NoticeErrors are failures to send some, ListenersLost connections for hearing them
	// that were lost or not to be had. With PokeCluster, NoticesSent alone counts; with other transports they are zero.
	NoticesSent, NoticesHeard, NoticesRefused, NoticeErrors, ListenersLost int64

	// AwaitingNow are callers of Await that wait just now. The flusher reads it to spare messages nobody needs.
	AwaitingNow int64
	// AwaitPushed are waiters answered by a local commit, AwaitProbes the queries made for the others.
	AwaitPushed, AwaitProbes int64

	// GatewayRequests are requests that the gateway got, GatewayRefused those that it refused, for whatever reason,
	// GatewayBusy those among them that it had no hands for. GatewayInHandNow are those it is at work on. GatewayDropped are
	// replies that were not sent, because too much waited for a peer that does not read.
	GatewayRequests, GatewayRefused, GatewayBusy, GatewayInHandNow, GatewayDropped int64

	// Reaped are rows whose lease had expired, DeadlinesWoken awaits that timed out, Reclaimed rows given
	// back because their node was found dead.
	Reaped, DeadlinesWoken, Reclaimed int64
	// SweepErrors are failed statements of reaper, gc and node.
	SweepErrors int64

	// CronInserted are instances that this process inserted for Config.Crons.
	CronInserted int64

	// Collected are terminal rows deleted after their retention, CollectedSide rows of our side tables.
	Collected, CollectedSide int64
	// Vacuums are runs of VACUUM that the gc made.
	Vacuums int64

	// Limits are the counters of rate limits and gates.
	Limits LimitStats
	// Firewall is what the firewall of the actor system has counted, which may be that of other engines, too. Zero without
	// Config.Cluster.
	Firewall cluster.FirewallStats

	// Queues are the counters of each queue that this process runs.
	Queues map[string]QueueStats
}

// LimitStats are what this process has counted of rate limits and gates. Those ending in Now are gauges.
type LimitStats struct {
	// Admissions are calls of the limiter, AdmittedRows and DeniedRows the answers in them; Contended are denied rows whose
	// limit may have had something left, Unconfigured those whose limit does not exist.
	Admissions, AdmittedRows, DeniedRows, Contended, Unconfigured int64
	// Credits are calls that gave slots back, CreditedSlots the slots in them, CreditRetries the calls that failed.
	Credits, CreditedSlots, CreditRetries int64
	// HeldNow are slots admitted here and not given back, UncreditedNow those given back that the limiter does not have yet.
	HeldNow, UncreditedNow int64
	// Reconciles are completed ones; Healed are slots that nobody held and that they found, Swept keys that they forgot.
	Reconciles, Healed, Swept int64
	// Errors are calls other than credits that failed.
	Errors int64
}

// QueueStats are what one queue of this process has counted. Those ending in Now are gauges.
type QueueStats struct {
	// RunningNow are rows that hold a slot; BufferedNow are rows that were claimed ahead and wait for one; CommittingNow are
	// rows that gave up theirs because their step has ended, and whose outcome is being committed, or whose next step (or error handler) waits for one.
	RunningNow, BufferedNow, CommittingNow int64
	// AbandonedNow are goroutines of steps that were given up and still run.
	AbandonedNow int64

	// Claims are claim statements that succeeded, EmptyClaims those among them without a row, ClaimedRows their
	// rows, LargestClaim the most rows in one; ClaimErrors are those that failed. Contended are tries that lost the race for a
	// concurrency key and were made again.
	Claims, EmptyClaims, ClaimedRows, LargestClaim, ClaimErrors, Contended int64
	// Denied are claimed rows that were given back because a limit had nothing left for them.
	Denied int64
	// Ended are runs that ended, in whatever way (a step, or an inline chain of steps): the sum of Committed, Stale, Vanished, Abandoned and GivenBack.
	Ended, Committed, Stale, Vanished, Abandoned, GivenBack int64
	// Continued are steps that were committed and went on to the next one in the same task, without a claim. Yielded are
	// chains of such steps that went back to their queue although they asked to go on: after InlineLimit steps, because the
	// step was cancelled or the queue drained or paused, or because they found no slot.
	Continued, Yielded int64
	// NotRun are rows that were failed instead of run: cancelled, too many crashes, too many attempts.
	NotRun int64
	// Lost are rows that a heartbeat found lost.
	Lost int64
	// UnknownSteps are the steps (machine, version, step) that this process was found unable to run, and that are not forgotten:
	// one whose state did not decode is, when it did not turn up for a while.
	UnknownSteps int64
	// Released are rows given back untouched, Unheld those among the claims that nobody had been told of.
	Released, Unheld int64
}

// Stats returns a snapshot of the engine's counters. It costs no query.
func (e *Engine) Stats() Stats {
	s := Stats{Queues: make(map[string]QueueStats, len(e.tree.queueCounters))}
	snapshot(&s, e.tree.counters)
	snapshot(&s.Limits, e.tree.limitCounters)
	if f := e.firewall(); f != nil {
		s.Firewall = f.Stats()
	}
	for name, counters := range e.tree.queueCounters {
		s.Queues[name] = counters.stats()
	}
	return s
}

// snapshot copies counters into the fields of the same names.
func snapshot(into, counters any) {
	dst, src := reflect.ValueOf(into).Elem(), reflect.ValueOf(counters).Elem()
	for i := range src.NumField() {
		n := src.Field(i).Addr().Interface().(*atomic.Int64).Load()
		dst.FieldByName(src.Type().Field(i).Name).SetInt(n)
	}
}
