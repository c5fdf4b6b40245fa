"""The worker: what wakes it (`sensors`), whose topics it has (`shard_leases`), what it does then (`work_loop`), all told (`worker`)."""
