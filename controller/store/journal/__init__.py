"""The operation journal: intents, claims, steps and commits of operations, and the deletion of superfluous logs.

The intent of an operation is written by `reshape_intents`, `topic_intents`, `subscription_intents`, `adoptions`, `seeks` or
`mirror_intents`. A runner claims the operation (`claims`), records its steps (`steps`), and commits its result (`commits`). Locks are
taken topic row first, then operation rows, both in the order of their ids.
"""
