-- Settles the fate of a flush whose answer was lost: waits for its backend if that is still at work, and then either
-- fences the attempt (it can never commit any more) or finds that it has committed.
-- $1 text name, $2 bigint the number the attempt would have set, $3 bigint a number beyond it
-- Returns one row if the attempt is fenced, also when this is repeated; none if it has committed (or the flusher's row is
-- gone). The number never goes back: a question whose own answer was lost may be asked late, when a later flush has
-- committed. Its lowest ten bits count openings of the row, see flusher_open; they say nothing about flushes.
-- Index: gen_durable_flushers_pkey.
UPDATE public.gen_durable_flushers f SET seq = greatest(f.seq, $3::bigint), beat = now()
 WHERE f.name = $1 AND f.seq >> 10 <> $2::bigint >> 10
RETURNING f.seq
