-- Whether this very session listens on a channel, and which server process it is.
-- $1 text channel
-- Locks nothing; reads no table.
SELECT pg_backend_pid(), EXISTS (SELECT FROM pg_listening_channels() AS l(channel) WHERE l.channel = $1::text)
