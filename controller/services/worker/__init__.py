"""The worker, which reacts to changes at once, whereas the scheduler's passes run every minute.

`sensors` wake the work loop, `work` describes the work they request, `agenda` keeps the due times,
`shard_leases` holds the worker's shards, `work_loop` does the work, and `worker` combines these parts.
"""
