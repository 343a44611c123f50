-- Creates the flusher's row, or takes over one that is there (which fences whatever its last owner still has on its way).
-- $1 text name
-- Returns the sequence number. Index: gen_durable_flushers_pkey.
INSERT INTO public.gen_durable_flushers AS f (name, seq) VALUES ($1, 1)
ON CONFLICT (name) DO UPDATE SET seq = f.seq + 1, beat = now()
RETURNING f.seq
