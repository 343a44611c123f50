-- New instances as in insert_bare that differ in nothing but their states: one array instead of six.
-- $1 text machine · $2 int version · $3 text step · $4 text[] state, JSON · $5 text queue · $6 smallint priority
-- $7 boolean has_inbox and has_children
-- Returns the ids in the order of the array. Locks nothing but what it inserts. Writes gen_durable_pkey and gen_durable_pick.
INSERT INTO public.gen_durable (fsm, fsm_version, step, state, queue, priority, has_inbox, has_children)
SELECT $1::text, $2::int, $3::text, u.state::jsonb, $5::text, $6::smallint, $7::boolean, $7::boolean
  FROM unnest($4::text[]) AS u(state)
RETURNING id
