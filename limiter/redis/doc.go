// Package redislimiter counts rate limits and gates in Redis, for fleets that share limits beyond one database, or ask for
// them more often than a database likes. It is a limiter.Limiter and a module of its own:
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	limits, err := redislimiter.New(client, redislimiter.Options{Namespace: "orders"})
//
// # What is stored
//
// All keys of a Namespace lie in one hash slot (its name is their hash tag), so that one script, in one round trip, decides
// about a whole batch of rows and about gate and rate of each together. It runs alone on the server: nobody is ever told
// that a limit is contended. On a cluster a Namespace lives on one shard; several Namespaces spread.
//
// A gate's key is a sorted set of those who hold its slots, by the end of their leases. Whoever does not renew loses the
// slot then, in the next admission to the key or in Reconcile, whichever comes first. A Credit removes exactly the holder
// that it names, however often it is repeated. A rate's key is a bucket of tokens and the time at which it was counted;
// one that is full takes no room. Only the server's own clock counts.
//
// Limits may have Shards, for other backends: here they are stored, read back and mean nothing. Every slot has number 0.
//
// # What is promised
//
// What package limiter demands, with two differences from a backend that sees the rows. Rows are not checked against their
// database: the caller asks only about rows whose claim it holds. And a slot whose holder died stays taken until its lease
// ends.
//
// Never over, also when Redis loses everything (a restart without persistence, a FLUSHALL, a replica that took over
// empty): each Limiter knows under which name the counters began. The first one that finds others in their place puts back
// the limits and closes all gates for one lease, in which every holder is counted again with its next Renew; and rates
// begin empty. Not noticed is a loss of which no process lives to tell, and one of some last writes only (asynchronous
// replication, appendfsync everysec): of slots granted in them, until they are renewed for the second time; of tokens.
//
// Redis must not evict keys: set maxmemory-policy noeviction. Needed is version 6.2 or later, or Valkey.
package redislimiter
