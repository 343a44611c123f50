-- The priorities of a queue's runnable rows, ascending, and the time by which a claim in the same transaction judges them.
-- $1 text queue · $2 boolean: the time alone, which costs nothing
-- Sent before a claim in one pipeline, when claims have become slow: what that claim finds nobody can run is left out of the next.
-- Locks nothing. Index: gen_durable_pick, a probe a priority.
WITH RECURSIVE lane(priority) AS (
    SELECT (SELECT g.priority FROM public.gen_durable g WHERE g.queue = $1 AND g.status = 'runnable' ORDER BY g.priority LIMIT 1)
    UNION ALL
    SELECT (SELECT g.priority FROM public.gen_durable g
             WHERE g.queue = $1 AND g.status = 'runnable' AND g.priority > l.priority ORDER BY g.priority LIMIT 1)
      FROM lane l
     WHERE l.priority IS NOT NULL
)
SELECT now(), CASE WHEN NOT $2 THEN ARRAY(SELECT l.priority FROM lane l WHERE l.priority IS NOT NULL) END
