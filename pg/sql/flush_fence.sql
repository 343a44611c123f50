-- Advances the flusher's sequence number, in the flush's own transaction. The first statement of each flush.
-- $1 text name, $2 bigint the number the row must carry, $3 bigint the new one
-- Fails with division_by_zero, and with it the whole flush, when somebody has advanced it since: this attempt was
-- declared dead. See fate_fence.
-- Locks: the flusher's row, which nobody else uses. Index: gen_durable_flushers_pkey, one probe.
WITH advanced AS (
    UPDATE public.gen_durable_flushers f SET seq = $3, beat = now()
     WHERE f.name = $1 AND f.seq = $2
    RETURNING 1
)
SELECT (1 / count(*))::int FROM advanced
