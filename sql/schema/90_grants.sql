-- Grants each role the least rights that it needs. The operator creates logins and grants each of them one of these roles; bootstrap.sql
-- creates the roles. `cleave migrate` grants the rights on the views of schema inspect when it rebuilds the views.

GRANT USAGE ON SCHEMA cleave, staging, inspect, embedded TO cleave_controller;
GRANT USAGE ON SCHEMA cleave, staging TO cleave_spark_loader;
GRANT USAGE ON SCHEMA inspect TO cleave_inspector;
GRANT USAGE ON SCHEMA embedded TO cleave_client;

-- The controller reads every control table. Functions of the owner, or `cleave migrate`, write the tables that it may not change.
GRANT SELECT ON ALL TABLES IN SCHEMA cleave TO cleave_controller;
GRANT USAGE ON SEQUENCE
    cleave.topic_topic_id_seq, cleave.operation_operation_id_seq, cleave.deletion_entry_deletion_entry_id_seq, cleave.decision_id_seq,
    embedded.generation, embedded.log_log_id_seq
    TO cleave_controller;

-- History: rows are added and never changed. Some rows expire.
GRANT INSERT ON
    cleave.layout_change, cleave.segment_parent, cleave.operation_child, cleave.operation_step, cleave.decision, cleave.policy_change,
    cleave.bundle_decision, cleave.audit
    TO cleave_controller;
GRANT INSERT, DELETE ON cleave.backtest_result, cleave.shadow_decision TO cleave_controller;

-- Rows that change and are never deleted.
GRANT INSERT, UPDATE ON
    cleave.topic, cleave.segment, cleave.topic_tally,
    cleave.operation, cleave.operation_parent, cleave.deletion_entry, cleave.lease,
    cleave.cluster_policy, cleave.namespace_policy,
    cleave.policy_candidate, cleave.namespace_bundles, cleave.bundle_state, cleave.bundle_proposal
    TO cleave_controller;
GRANT UPDATE ON cleave.cluster_reconnections TO cleave_controller;

-- Rows that are inserted, changed and deleted.
GRANT INSERT, UPDATE, DELETE ON
    cleave.unmanaged_log, cleave.mirror, cleave.api_request,
    cleave.subscription, cleave.observed_subscription, cleave.segment_drain, cleave.drain_backlog,
    cleave.consumer, cleave.departed_consumer, cleave.gate, cleave.bucket_owner, cleave.bucket_opening, cleave.message_delivery,
    cleave.load_reader, cleave.segment_producers, cleave.segment_sketch, cleave.evaluation, cleave.approval, cleave.backtest_run
    TO cleave_controller;

-- Rows that the aggregation writes with the rights of the owner. The controller only deletes them.
GRANT DELETE ON cleave.load_memory, cleave.segment_load, cleave.load_history TO cleave_controller;

-- Only the named roles may call functions that run with the rights of the owner.
REVOKE EXECUTE ON FUNCTION
    cleave.database_identity, cleave.ensure_decision_partitions, cleave.drop_decision_partitions, cleave.expire_audit,
    cleave.expire_bundle_history, cleave.forget_bundle_inputs, cleave.empty_bundle_inbox, cleave.merge_bundle_load,
    cleave.merge_load, cleave.merge_sketches, cleave.remember_loads, cleave.note_set_aside, cleave.forget_sealed_loads,
    cleave.expire_load_runs
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    cleave.database_identity, cleave.ensure_decision_partitions, cleave.drop_decision_partitions, cleave.expire_audit,
    cleave.expire_bundle_history, cleave.forget_bundle_inputs, cleave.merge_bundle_load, cleave.merge_load,
    cleave.merge_sketches, cleave.note_set_aside, cleave.forget_sealed_loads, cleave.expire_load_runs
    TO cleave_controller;
GRANT EXECUTE ON FUNCTION cleave.database_identity TO cleave_inspector;

-- Loaders write rows into schema staging and call functions that merge the rows. An installation without a login of the role
-- cleave_spark_loader aggregates with the login of the controller, so the controller has the same rights.
GRANT SELECT ON
    cleave.segment_load, cleave.load_source, cleave.load_run, cleave.threshold_in_force, cleave.memory_in_force,
    cleave.namespace_bundles, cleave.bundle_load, cleave.broker_load, cleave.namespace_load, cleave.bundle_load_run
    TO cleave_spark_loader;
GRANT INSERT ON ALL TABLES IN SCHEMA staging TO cleave_spark_loader, cleave_controller;
GRANT EXECUTE ON FUNCTION cleave.merge_load, cleave.merge_bundle_load, cleave.merge_sketches, cleave.note_set_aside TO cleave_spark_loader;

-- The embedded data plane. Applications have no right on its tables.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA embedded TO cleave_controller;
REVOKE INSERT, UPDATE, DELETE ON embedded.instance FROM cleave_controller;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA embedded FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA embedded TO cleave_controller;
GRANT EXECUTE ON FUNCTION
    embedded.append, embedded.bounds, embedded.open_at, embedded.read_at,
    embedded.take, embedded.read, embedded.look, embedded.missed, embedded.acknowledge, embedded.owners, embedded.release,
    embedded.queue_open, embedded.queue_take, embedded.queue_acknowledge, embedded.queue_give_back, embedded.queue_keep,
    embedded.queue_is_drained, embedded.queue_close
    TO cleave_client;
