-- What a node says of itself so that the database alone can tell why an instance is not run: the steps that it knows, those
-- that it left out of its claims because a state did not decode, and how long its silence means nothing. Every statement is
-- idempotent, as in the migrations before. The comment on gen_durable_nodes is the version of our part of the schema.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE public.gen_durable_nodes
    ADD COLUMN IF NOT EXISTS steps        text[] NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS unfit        text[] NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS silent_after interval NOT NULL DEFAULT '60 seconds';

COMMENT ON TABLE public.gen_durable_nodes IS '6';
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
ALTER TABLE IF EXISTS public.gen_durable_nodes
    DROP COLUMN IF EXISTS steps,
    DROP COLUMN IF EXISTS unfit,
    DROP COLUMN IF EXISTS silent_after;
DO $gen_durable$
BEGIN
    IF EXISTS (SELECT FROM pg_class c
                 JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'public' AND c.relname = 'gen_durable_nodes') THEN
        COMMENT ON TABLE public.gen_durable_nodes IS '5';
    END IF;
END
$gen_durable$;
-- +goose StatementEnd
