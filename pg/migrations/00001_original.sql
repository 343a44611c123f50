-- Schema version 3 of the original engine, object for object, so that nodes of both engines can share a database.
-- Every statement is idempotent: a database that is at version 3 already is adopted as it stands, and a database
-- with another mark is refused before anything is touched.

-- +goose Up
-- +goose StatementBegin
DO $gen_durable$
DECLARE
    found boolean;
    mark  text;
BEGIN
    SELECT true, obj_description(c.oid, 'pg_class')
      INTO found, mark
      FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = 'public' AND c.relname = 'gen_durable';
    IF found AND mark IS DISTINCT FROM '3' THEN
        RAISE EXCEPTION 'the table gen_durable exists with the version mark %, this migration adopts version 3 only',
            coalesce(quote_literal(mark), '(none)')
            USING HINT = 'Bring the schema to version 3 with the tool that created it, or choose another schema.';
    END IF;

    IF NOT EXISTS (SELECT FROM pg_type t
                     JOIN pg_namespace n ON n.oid = t.typnamespace
                    WHERE n.nspname = 'public' AND t.typname = 'durable_status') THEN
        CREATE TYPE public.durable_status AS ENUM
            ('runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed');
    END IF;
END
$gen_durable$;

CREATE TABLE IF NOT EXISTS public.gen_durable (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fsm               text NOT NULL,
    fsm_version       integer NOT NULL DEFAULT 1,
    step              text NOT NULL,
    status            public.durable_status NOT NULL DEFAULT 'runnable',
    state             jsonb NOT NULL DEFAULT '{}',
    result            jsonb,
    awaits            text[],
    queue             text NOT NULL DEFAULT 'default',
    priority          smallint NOT NULL DEFAULT 0,
    concurrency_key   text,
    concurrency_shard smallint,
    concurrency_name  text GENERATED ALWAYS AS (split_part(concurrency_key, ':', 1)) STORED,
    eligible_at       timestamptz NOT NULL DEFAULT now(),
    attempt           integer NOT NULL DEFAULT 0,
    last_error        text,
    await_deadline    timestamptz,
    rate_limit        text,
    weight            double precision NOT NULL DEFAULT 1,
    locked_by         text,
    lease_expires_at  timestamptz,
    parent_id         bigint REFERENCES public.gen_durable (id) ON DELETE SET NULL,
    children_pending  integer NOT NULL DEFAULT 0,
    correlation_key   text,
    correlation_scope public.durable_status[] NOT NULL DEFAULT '{}',
    correlation_guard text GENERATED ALWAYS AS
        (CASE WHEN status = ANY (correlation_scope) THEN correlation_key END) STORED,
    inserted_at       timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX IF NOT EXISTS gen_durable_pick ON public.gen_durable (queue, priority, eligible_at)
    WHERE status = 'runnable';
CREATE INDEX IF NOT EXISTS gen_durable_lease ON public.gen_durable (lease_expires_at)
    WHERE status = 'executing';
CREATE INDEX IF NOT EXISTS gen_durable_await_deadline ON public.gen_durable (await_deadline)
    WHERE status = 'awaiting_signal' AND await_deadline IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS gen_durable_concurrency_active ON public.gen_durable (concurrency_key)
    WHERE status = 'executing' AND concurrency_key IS NOT NULL AND concurrency_shard IS NULL;
CREATE UNIQUE INDEX IF NOT EXISTS gen_durable_correlation ON public.gen_durable (correlation_guard)
    WHERE correlation_guard IS NOT NULL;
CREATE INDEX IF NOT EXISTS gen_durable_parent ON public.gen_durable (parent_id)
    WHERE parent_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS gen_durable_gc ON public.gen_durable (updated_at)
    WHERE status IN ('done', 'failed');

CREATE TABLE IF NOT EXISTS public.signals (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target_id   bigint NOT NULL REFERENCES public.gen_durable (id) ON DELETE CASCADE,
    name        text NOT NULL,
    payload     jsonb NOT NULL DEFAULT '{}',
    dedup_key   text,
    inserted_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (target_id, dedup_key)
);

CREATE INDEX IF NOT EXISTS signals_target ON public.signals (target_id, name);

CREATE TABLE IF NOT EXISTS public.gen_durable_bucket_configs (
    kind     text NOT NULL CHECK (kind IN ('rate', 'conc')),
    name     text NOT NULL,
    rate     double precision,
    capacity double precision NOT NULL,
    shards   smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (kind, name)
);

CREATE TABLE IF NOT EXISTS public.gen_durable_buckets (
    kind        text NOT NULL,
    key         text NOT NULL,
    shard       smallint NOT NULL DEFAULT 0,
    capacity    double precision NOT NULL,
    available   double precision NOT NULL,
    last_refill timestamptz,
    PRIMARY KEY (kind, key, shard),
    CONSTRAINT gen_durable_buckets_check CHECK (available >= 0 AND available <= capacity)
);

COMMENT ON TABLE public.gen_durable IS '3';
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE IF EXISTS public.gen_durable_buckets, public.gen_durable_bucket_configs, public.signals, public.gen_durable;
DROP TYPE IF EXISTS public.durable_status;
-- +goose StatementEnd
