// Package pg holds every statement the engine sends to Postgres, its migrations, and one Go function for each
// statement. It knows rows; it knows no machines and no actors.
//
// A Store is opened once on a migrated database and is safe for concurrent use. Its methods come in two kinds: those
// of the host (Insert, Signal, Get, Cancel) take the connection to run on, which may be the caller's own transaction;
// those of the engine run on the pool given to Open, which EnginePool derives from the host's.
//
// The SQL texts live in sql/, one file a statement. They name their tables in the schema public; Open replaces that
// once by the schema in use, because a search_path would not hold inside a caller's transaction.
package pg
