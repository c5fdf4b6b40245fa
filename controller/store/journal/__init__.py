"""The journal: from the intent of an operation through its claims, steps and commit to the logs that are left over.

Every operation begins in `reshape_intents` or `topic_intents`, is taken by a runner in `claims`, moves in `steps` and
becomes true in `commits`. Locks are taken topic row first, then operation rows, both in the order of their ids.
"""
