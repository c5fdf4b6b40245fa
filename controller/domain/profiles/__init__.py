"""The rule sets that a policy may name, and the parts of an evaluation that they share.

The package `pip483` gives Pulsar 5's answers; `adaptive`, with which new installations begin, plans the whole ring at
once with `ring_plan`, the prices of `run_prices` and the `consumer_plan`. `registry` finds a profile by its name. Both
share `evaluation_context` (the inputs, and the refusals so far), `cooldowns`, `load_freshness` (the age above which a
load record is stale) and `idle_buckets` (when entry buckets are given up). The evaluator checks the policy and calls
the profile; rules of other products, which only serve comparison, are in `controller.backtest.rivals`.
"""
