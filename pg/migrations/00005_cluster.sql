-- What a node says of itself to the others of its cluster, in the row that it has anyway. No index: the table has a row a
-- node and is read whole, and an update of columns without an index stays on its page.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE public.gen_durable_nodes
    ADD COLUMN IF NOT EXISTS role        text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS member      text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS member_beat timestamptz,
    ADD COLUMN IF NOT EXISTS lanes       text[] NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS seats       jsonb NOT NULL DEFAULT '{}';

COMMENT ON TABLE public.gen_durable_nodes IS '5';
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
ALTER TABLE IF EXISTS public.gen_durable_nodes
    DROP COLUMN IF EXISTS role,
    DROP COLUMN IF EXISTS member,
    DROP COLUMN IF EXISTS member_beat,
    DROP COLUMN IF EXISTS lanes,
    DROP COLUMN IF EXISTS seats;
DO $gen_durable$
BEGIN
    IF EXISTS (SELECT FROM pg_class c
                 JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'public' AND c.relname = 'gen_durable_nodes') THEN
        COMMENT ON TABLE public.gen_durable_nodes IS '4';
    END IF;
END
$gen_durable$;
-- +goose StatementEnd
