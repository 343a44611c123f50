package actors

import "sync/atomic"

// QueueCounters are what one queue of this process counts since the engine started. Every field may be read at
// any time from any goroutine. Those ending in Now are gauges.
type QueueCounters struct {
	// RunningNow are rows that hold a slot; BufferedNow are rows that were claimed ahead and wait for one; CommittingNow are
	// rows that gave up theirs because their step has ended, and whose outcome is being committed.
	RunningNow, BufferedNow, CommittingNow atomic.Int64
	// AbandonedNow are goroutines of steps that were given up and still run.
	AbandonedNow atomic.Int64

	// Claims are claim statements that succeeded, EmptyClaims those among them without a row, ClaimedRows their
	// rows, LargestClaim the most rows in one; ClaimErrors are those that failed. Contended are tries that lost the race for a
	// concurrency key and were made again.
	Claims, EmptyClaims, ClaimedRows, LargestClaim, ClaimErrors, Contended atomic.Int64
	// Denied are claimed rows that were given back because a limit had nothing left for them.
	Denied atomic.Int64
	// Ended are runs that ended, in whatever way (a step, or an inline chain of steps): the sum of Committed, Stale, Vanished, Abandoned and GivenBack.
	Ended, Committed, Stale, Vanished, Abandoned, GivenBack atomic.Int64
	// Continued are steps that were committed and went on to the next one in the same task, without a claim. Yielded are
	// chains of such steps that went back to their queue although they asked to go on: after InlineLimit steps, because the
	// step was cancelled or the queue drained or paused, or because they found no slot.
	Continued, Yielded atomic.Int64
	// NotRun are rows that were failed instead of run: cancelled, too many crashes, too many attempts.
	NotRun atomic.Int64
	// Lost are rows that a heartbeat found lost.
	Lost atomic.Int64
	// UnknownSteps are the steps (machine, version, step) that this process was found unable to run, and that are not forgotten.
	UnknownSteps atomic.Int64
	// Released are rows given back untouched, Unheld those among the claims that nobody had been told of.
	Released, Unheld atomic.Int64
}
