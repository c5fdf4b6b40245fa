"""The worker, which acts at once where the scheduler's passes come each minute.

`sensors` wake it, `work` is what they ask for, `agenda` says what is due when, `shard_leases` whose topics it has,
`work_loop` does the work, and `worker` is all of it together.
"""
