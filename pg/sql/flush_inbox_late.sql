-- Deletes the inboxes that flush_end has noted in this transaction. A rider; costs next to nothing when there are none.
-- Locks: signals of rows whose lock this transaction holds already. Index: signals_target.
DELETE FROM public.signals s
 WHERE s.target_id = ANY (string_to_array(rtrim(current_setting('gendurable.late_inboxes', true), ','), ',')::bigint[])
