-- Settles the fate of a flush whose answer was lost: waits for its backend if that is still at work, and then either
-- fences the attempt (it can never commit any more) or finds that it has committed.
-- $1 text name, $2 bigint the number the attempt would have set, $3 bigint a number beyond it
-- Returns one row if the attempt is fenced, also when this is repeated; none if it has committed (or the flusher's row is
-- gone). Index: gen_durable_flushers_pkey.
UPDATE public.gen_durable_flushers f SET seq = $3, beat = now()
 WHERE f.name = $1 AND f.seq <> $2
RETURNING f.seq
