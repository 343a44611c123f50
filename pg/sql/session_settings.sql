-- Makes settings for this transaction, where a proxy hands each transaction another session. Before flush_fence.
-- $1 text[] names · $2 text[] values
SELECT set_config(u.name, u.value, true) FROM unnest($1::text[], $2::text[]) AS u(name, value)
