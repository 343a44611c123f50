// Package limiter is the contract between the engine and whatever counts its rate limits and gates: the interface
// Limiter, and the types that travel through it. The engine's own database is the default backend; others implement
// the interface and run the suite in package limitertest.
//
// A rate is a token bucket: so many tokens per period, and at most Burst of them saved up. A step takes its weight in
// tokens when it is claimed, and never gives them back. A gate is a number of slots: a step takes one when it is
// claimed, holds it until its outcome is durable, and gives it back then.
//
// Both are kept per key. A key is a limit's name, or the name, a ':' and a partition: "stripe" and "stripe:eu" are two
// buckets of the same size, both configured under "stripe". A key needs no set-up: the first admission that meets it
// finds it full.
//
// # What a backend promises
//
//   - Never over. In any window of length t a rate admits at most Burst + rate·t in weight; a gate never has more than
//     Limit holders, over all processes. While a configuration changes, holders above a lowered limit keep their slots.
//   - All or nothing. A step that needs a gate and a rate gets both or pays for neither.
//   - In order. Of the steps that ask for one key in one call, those admitted are the longest prefix that fits: no
//     step overtakes one before it.
//   - Only its own clock counts, never that of a caller.
//   - A crash may leave less than the limit free, never more. Reconcile finds what is missing and returns it.
//   - All methods may be called by any number of processes at once.
package limiter
