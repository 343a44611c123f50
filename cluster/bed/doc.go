// Package bed is the test bed of clusters: several real processes on one machine, which are killed, stopped, cut off from the
// database and from each other, and restarted under load, while a ledger in the database records what their steps did. It has
// tests only; make chaos runs them for long, with faults in random order.
package bed
