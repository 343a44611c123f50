package actors

import "sync/atomic"

// Counters are what an engine's actors count since the engine started. One value is shared by all of them;
// every field may be read and advanced at any time from any goroutine. Those ending in Now are gauges.
type Counters struct {
	// Panics are panics inside actors, Restarts the restarts that followed.
	Panics, Restarts atomic.Int64

	// Flushes are committed transactions, Outcomes the outcomes in them, LargestFlush the most in one.
	Flushes, Outcomes, LargestFlush atomic.Int64
	// Stale are outcomes of rows that their worker had lost, Cancelled those turned into a failure by a cancel.
	Stale, Cancelled atomic.Int64
	// Splits are flushes that failed and were cut in pieces; Refused are outcomes whose content the database refused.
	Splits, Refused atomic.Int64
	// SlowLane are outcomes whose row somebody else had locked and that were retried alone.
	SlowLane, SlowLaneNow atomic.Int64
	// FlushRetries are flushes repeated because the connection was lost or the database was away.
	FlushRetries atomic.Int64
	// Dropped are outcomes dropped before they were sent because nobody waited for them any more.
	Dropped atomic.Int64

	// Pokes are messages sent to schedulers, PokesMerged announcements that were one with an earlier one.
	Pokes, PokesMerged atomic.Int64

	// NoticesSent are announcements sent to other processes, NoticesHeard those that came from them, NoticesRefused
	// notifications that were none. NoticeErrors are failures to send some, ListenersLost connections for hearing them
	// that were lost or not to be had.
	NoticesSent, NoticesHeard, NoticesRefused, NoticeErrors, ListenersLost atomic.Int64

	// AwaitingNow are callers of Await that wait just now. The flusher reads it to spare messages nobody needs.
	AwaitingNow atomic.Int64
	// AwaitPushed are waiters answered by a local commit, AwaitProbes the queries made for the others.
	AwaitPushed, AwaitProbes atomic.Int64

	// GatewayRequests are requests that the gateway got, GatewayRefused those that it refused, for whatever reason,
	// GatewayBusy those among them that it had no hands for. GatewayInHandNow are those it is at work on. GatewayDropped are
	// replies that were not sent, because too much waited for a peer that does not read.
	GatewayRequests, GatewayRefused, GatewayBusy, GatewayInHandNow, GatewayDropped atomic.Int64

	// Reaped are rows whose lease had expired, DeadlinesWoken awaits that timed out, Reclaimed rows given
	// back because their node was found dead.
	Reaped, DeadlinesWoken, Reclaimed atomic.Int64
	// SweepErrors are failed statements of reaper, gc and node.
	SweepErrors atomic.Int64

	// CronInserted are instances that were inserted for an occurrence of a periodic insertion.
	CronInserted atomic.Int64

	// Collected are terminal rows deleted after their retention, CollectedSide rows of our side tables.
	Collected, CollectedSide atomic.Int64
	// Vacuums are runs of VACUUM that the gc made.
	Vacuums atomic.Int64
}

// Max raises gauge to v if v is larger.
func Max(gauge *atomic.Int64, v int64) {
	for {
		old := gauge.Load()
		if v <= old || gauge.CompareAndSwap(old, v) {
			return
		}
	}
}
