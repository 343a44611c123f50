-- Vacuums the two tables that bleed dead rows, if nobody else does just now. Without the truncation at the end, which
-- would want an exclusive lock. Must run outside of a transaction. No parameters.
VACUUM (SKIP_LOCKED, TRUNCATE off) public.gen_durable, public.signals
