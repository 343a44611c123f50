-- The id of the transaction, which the flush's fence has given it already. Sent only when an outcome gives up a gate's slot.
-- Locks nothing.
SELECT pg_current_xact_id()::text::bigint
