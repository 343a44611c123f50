-- Tells the processes that listen on a channel which queues have runnable work.
-- $1 text channel · $2 text[] payloads, each less than 8,000 bytes
-- Locks no row. Its commit takes its turn with the commits of all other notifying transactions of the server.
SELECT pg_notify($1::text, u.payload) FROM unnest($2::text[]) AS u(payload)
