-- What this engine adds. Columns are added with defaults that mean "as the original has it"; tables carry the
-- original's prefix. Every statement is idempotent, because a database migrated with the printed SQL has no record
-- of it in gen_durable_migrations. The comment on gen_durable_nodes is the version of our part of the schema.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE public.gen_durable
    ADD COLUMN IF NOT EXISTS claims           integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS crashes          integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS crash_step       text,
    ADD COLUMN IF NOT EXISTS cancel_requested text,
    ADD COLUMN IF NOT EXISTS has_inbox        boolean NOT NULL DEFAULT true,
    ADD COLUMN IF NOT EXISTS has_children     boolean NOT NULL DEFAULT true;

-- A row is rewritten at least twice in its life: room on its page keeps the updates that touch no indexed column off
-- the indexes. A queue's dead rows come in a steady stream, so vacuum by their number and not by the table's size,
-- and without pausing.
ALTER TABLE public.gen_durable SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);
ALTER TABLE public.signals SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

-- Of a gate's shard: what was committed when its holders were last counted (or the shard was made, full). Slots of
-- rows that had ended by then were counted as free; a credit that comes later frees them no second time.
ALTER TABLE public.gen_durable_buckets ADD COLUMN IF NOT EXISTS counted pg_snapshot;
-- A few rows that are rewritten all the time.
ALTER TABLE public.gen_durable_buckets SET (
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE IF NOT EXISTS public.gen_durable_dedup (
    target_id bigint NOT NULL REFERENCES public.gen_durable (id) ON DELETE CASCADE,
    dedup_key text NOT NULL,
    PRIMARY KEY (target_id, dedup_key)
);

CREATE TABLE IF NOT EXISTS public.gen_durable_requests (
    id          text PRIMARY KEY,
    instance_id bigint NOT NULL,
    inserted_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS gen_durable_requests_age ON public.gen_durable_requests (inserted_at);

CREATE TABLE IF NOT EXISTS public.gen_durable_flushers (
    name text PRIMARY KEY,
    seq  bigint NOT NULL DEFAULT 0,
    beat timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE IF NOT EXISTS public.gen_durable_nodes (
    engine      text NOT NULL,
    node        text NOT NULL,
    incarnation text NOT NULL,
    named       boolean NOT NULL,
    address     text NOT NULL DEFAULT '',
    queues      text[] NOT NULL DEFAULT '{}',
    machines    text[] NOT NULL DEFAULT '{}',
    started_at  timestamptz NOT NULL DEFAULT now(),
    beat        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (engine, node)
) WITH (fillfactor = 50);

COMMENT ON TABLE public.gen_durable_nodes IS '2';
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE IF EXISTS public.gen_durable_nodes, public.gen_durable_flushers, public.gen_durable_requests,
    public.gen_durable_dedup;
ALTER TABLE IF EXISTS public.gen_durable_buckets DROP COLUMN IF EXISTS counted;
ALTER TABLE IF EXISTS public.gen_durable_buckets RESET (fillfactor, autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay);
ALTER TABLE IF EXISTS public.signals RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
    autovacuum_vacuum_cost_delay);
ALTER TABLE IF EXISTS public.gen_durable RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
    autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_cost_delay, autovacuum_analyze_scale_factor);
ALTER TABLE IF EXISTS public.gen_durable
    DROP COLUMN IF EXISTS claims,
    DROP COLUMN IF EXISTS crashes,
    DROP COLUMN IF EXISTS crash_step,
    DROP COLUMN IF EXISTS cancel_requested,
    DROP COLUMN IF EXISTS has_inbox,
    DROP COLUMN IF EXISTS has_children;
-- +goose StatementEnd
