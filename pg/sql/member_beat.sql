-- A member of the cluster says that it lives and what it serves, and reads who else lives, by this server's clock alone.
-- $1 text engine · $2 text node · $3 text incarnation · $4 text the member id · $5 text the id that it takes instead when it
-- was silent for too long · $6 bigint how long, in µs, is too long for itself · $7 bigint how long, in µs, for others
-- $8 text address · $9 text role · $10 text[] lanes it serves · $11 jsonb the lanes that it could serve, by queue
-- Once taken, the other id stays: a beat may have committed it whose answer was lost.
-- Of several rows with one address the caller's own counts, else the youngest: who has the port lives.
-- Returns the living, the caller among them if its row is there and still its own.
-- Locks: the node's own row. Index: gen_durable_nodes_pkey; the others' rows are read without a lock, the table whole.
WITH mine AS (
    UPDATE public.gen_durable_nodes n
       SET member_beat = now(), address = $8, role = $9, lanes = $10, seats = $11,
           member = CASE WHEN n.member = $5 OR n.member = $4 AND n.member_beat < now() - $6::bigint * interval '1 microsecond'
                         THEN $5 ELSE $4 END
     WHERE n.engine = $1 AND n.node = $2 AND n.incarnation = $3
    RETURNING n.node, n.incarnation, n.member, n.address, n.role, n.queues, n.machines, n.lanes, n.seats, n.member_beat
), living AS (
    SELECT true AS own, m.* FROM mine m
    UNION ALL
    SELECT false, n.node, n.incarnation, n.member, n.address, n.role, n.queues, n.machines, n.lanes, n.seats, n.member_beat
      FROM public.gen_durable_nodes n
     WHERE n.engine = $1 AND n.node <> $2 AND n.member <> ''
       AND n.member_beat > now() - $7::bigint * interval '1 microsecond'
)
SELECT DISTINCT ON (l.address) l.own, l.node, l.incarnation, l.member, l.address, l.role, l.queues, l.machines, l.lanes, l.seats
  FROM living l
 ORDER BY l.address, l.own DESC, l.member_beat DESC
