"""The rule sets that a policy may name, and the parts of an evaluation that they share.

The package `pip483` gives Pulsar 5's answers; `adaptive`, with which new installations begin, plans the whole ring at
once with `ring_plan` and the `consumer_plan`. The evaluator finds a profile by its name. Both
share `evaluation_context` (the inputs, the refusals so far, and the cooldowns) and `idle_buckets` (when entry buckets are
given up). The evaluator checks the policy and calls
the profile; rules of other products, which only serve comparison, are in `controller.backtest.rivals`.
"""
