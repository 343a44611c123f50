// Package actors is the contract of the engine's actor tree: who exists and under which name, which messages
// they send one another inside a process, and how each of them is guarded and supervised. The behaviour of
// each actor lives in a package of its own below this one; those packages never import each other.
//
//	gendurable/<engine>
//	├── flusher/<n>      group commit of outcomes
//	├── poke             announcements of runnable work
//	├── await            callers that wait for an instance to settle
//	├── reaper · gc · node
//	└── queue/<name>
//	    ├── scheduler
//	    └── steps
//
// Rules that all of them keep: no database call inside Receive; results come back as messages that carry the
// incarnation they belong to; timers are time.AfterFunc plus a message; whoever holds waiters answers them
// when it restarts (ErrRestarting) or stops (ErrStopped). A message that is still in a mailbox when its actor
// stops is lost without a trace, therefore whoever waits for a reply also waits for its own end.
package actors
