-- What operators need: queues that are paused, periodic insertions, and the two indexes by which lists and counts stay
-- bounded. Every statement is idempotent, as in the migration before. The comment on gen_durable_nodes is the version
-- of our part of the schema.

-- +goose Up
-- +goose StatementBegin
-- A row is a queue that is paused: every claim looks for it.
CREATE TABLE IF NOT EXISTS public.gen_durable_queues (
    queue     text PRIMARY KEY,
    paused_at timestamptz NOT NULL DEFAULT now()
);

-- The last occurrence of each periodic insertion that was inserted, or passed over.
CREATE TABLE IF NOT EXISTS public.gen_durable_cron (
    name text PRIMARY KEY,
    last timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- For lists and counts. Only an instance that parks or fails pays for an entry.
CREATE INDEX IF NOT EXISTS gen_durable_parked ON public.gen_durable (queue, status, id)
    WHERE status IN ('awaiting_signal', 'awaiting_children');
CREATE INDEX IF NOT EXISTS gen_durable_failed ON public.gen_durable (queue, id)
    WHERE status = 'failed';

COMMENT ON TABLE public.gen_durable_nodes IS '3';
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP INDEX IF EXISTS public.gen_durable_failed, public.gen_durable_parked;
DROP TABLE IF EXISTS public.gen_durable_cron, public.gen_durable_queues;
DO $gen_durable$
BEGIN
    IF EXISTS (SELECT FROM pg_class c
                 JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'public' AND c.relname = 'gen_durable_nodes') THEN
        COMMENT ON TABLE public.gen_durable_nodes IS '2';
    END IF;
END
$gen_durable$;
-- +goose StatementEnd
