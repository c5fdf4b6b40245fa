-- Ends transactions of applications that hold locks of logs or cursors for longer than a call may take.
--
-- A login can change its own time-outs, so the time-outs of a role prevent accidents only. A transaction that stays open after an append
-- makes the fence of its segment, and all other producers, wait without a limit. The worker and the fence call this function. An
-- application that only waits for a lock gets three times as long, because another transaction usually causes its wait.
--
-- A session that listens and stays in a transaction keeps the server from clearing its queue of notifications, and if the queue is
-- full, no transaction that notifies can commit. So if a quarter of the queue is in use, transactions of applications and
-- inspectors that are older than a minute end as well, in any database of the server.

CREATE FUNCTION embedded.end_long_transactions(
    longest_seconds double precision, OUT process_id integer, OUT login text, OUT seconds double precision
) RETURNS SETOF record LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT (pg_has_role(current_user, 'pg_signal_backend', 'USAGE') AND pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')) THEN
        RAISE EXCEPTION 'role % may not end transactions of applications; as a superuser run GRANT pg_signal_backend, pg_read_all_stats TO %',
            current_user, current_user USING ERRCODE = 'insufficient_privilege';
    END IF;
    FOR process_id, login, seconds IN
        SELECT a.pid, a.usename, extract(epoch FROM clock_timestamp() - a.xact_start)
          FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid
         WHERE NOT r.rolsuper AND NOT pg_has_role(r.oid, 'cleave_owner', 'MEMBER') AND NOT pg_has_role(r.oid, 'cleave_controller', 'MEMBER')
           AND (pg_has_role(r.oid, 'cleave_client', 'MEMBER')
                AND a.xact_start < clock_timestamp() - longest_seconds * interval '1 s'
                    * CASE WHEN a.wait_event_type = 'Lock' THEN 3 ELSE 1 END
                AND a.pid IN (SELECT l.pid FROM pg_locks l
                               WHERE l.locktype = 'relation' AND l.granted AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
                                 AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                                 AND l.relation IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'embedded'::regnamespace))
                OR (pg_has_role(r.oid, 'cleave_client', 'MEMBER') OR pg_has_role(r.oid, 'cleave_inspector', 'MEMBER'))
                AND a.xact_start < clock_timestamp() - interval '1 min' AND pg_notification_queue_usage() > 0.25)
    LOOP
        IF pg_terminate_backend(process_id) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;
