-- New instances as in insert_many, none of which has a concurrency key, a rate limit or a time: half the arrays.
-- $1 text[] machine · $2 int[] version · $3 text[] step · $4 text[] state, JSON · $5 text[] queue · $6 smallint[] priority
-- $7 boolean has_inbox and has_children
-- Returns the ids in the order of the arrays. Locks nothing but what it inserts. Writes gen_durable_pkey and
-- gen_durable_pick.
INSERT INTO public.gen_durable (fsm, fsm_version, step, state, queue, priority, has_inbox, has_children)
SELECT u.fsm, u.version, u.step, u.state::jsonb, u.queue, u.priority, $7::boolean, $7::boolean
  FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::smallint[])
       AS u(fsm, version, step, state, queue, priority)
RETURNING id
