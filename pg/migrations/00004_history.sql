-- What telemetry and histories need: where a trace goes on, of an instance and of a signal; and the table of transitions.
-- Nobody writes the columns, nor the table, unless asked to.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE public.gen_durable ADD COLUMN IF NOT EXISTS trace_context text;
ALTER TABLE public.signals ADD COLUMN IF NOT EXISTS trace_context text;

-- No foreign key: its trigger would cost every deletion of an instance, also of those that keep no history.
CREATE TABLE IF NOT EXISTS public.gen_durable_history (
    instance_id bigint NOT NULL,
    id          bigint GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT now(),
    step        text NOT NULL,
    attempt     integer NOT NULL,
    outcome     text NOT NULL,
    next_step   text,
    status      public.durable_status NOT NULL,
    error       text,
    worker      text,
    took        bigint,
    PRIMARY KEY (instance_id, id)
);

COMMENT ON TABLE public.gen_durable_nodes IS '4';
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE IF EXISTS public.gen_durable_history;
ALTER TABLE IF EXISTS public.signals DROP COLUMN IF EXISTS trace_context;
ALTER TABLE IF EXISTS public.gen_durable DROP COLUMN IF EXISTS trace_context;
DO $gen_durable$
BEGIN
    IF EXISTS (SELECT FROM pg_class c
                 JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'public' AND c.relname = 'gen_durable_nodes') THEN
        COMMENT ON TABLE public.gen_durable_nodes IS '3';
    END IF;
END
$gen_durable$;
-- +goose StatementEnd
