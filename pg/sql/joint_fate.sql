-- Whether one of these transactions has committed. Asked only once their backends have ended them, see joint_guard.
-- $1 text[] numbers of transactions
-- Locks nothing.
SELECT coalesce(bool_or(pg_xact_status(u.number::xid8) = 'committed'), false) FROM unnest($1::text[]) AS u(number)
