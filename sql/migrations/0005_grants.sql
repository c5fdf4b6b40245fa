-- Least rights. Login users are made by the operator and granted one of these roles.

GRANT USAGE ON SCHEMA cleave, staging, inspect TO cleave_controller;
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA cleave TO cleave_controller;
GRANT DELETE ON cleave.namespace_policy, cleave.subscription, cleave.consumer, cleave.segment_drain,
    cleave.bucket_checkpoint, cleave.lease, cleave.segment_load, cleave.evaluation TO cleave_controller;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA cleave TO cleave_controller;
REVOKE UPDATE, DELETE ON cleave.layout_change, cleave.segment_parent, cleave.decision FROM cleave_controller;
REVOKE INSERT, UPDATE ON cleave.policy_default, cleave.migration FROM cleave_controller;

GRANT USAGE ON SCHEMA cleave, staging TO cleave_spark_loader;
GRANT SELECT ON cleave.segment_load, cleave.load_source, cleave.load_run, cleave.threshold_in_force TO cleave_spark_loader;
GRANT INSERT ON staging.load_row, staging.source_row TO cleave_spark_loader;
REVOKE EXECUTE ON FUNCTION cleave.merge_load(text, timestamptz, text, bigint, bigint, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cleave.merge_load(text, timestamptz, text, bigint, bigint, text[]) TO cleave_spark_loader, cleave_controller;

GRANT USAGE ON SCHEMA inspect TO cleave_inspector;
