"""The rule sets that a policy may name, and the parts that only one profile needs.

The package `pip483` gives Pulsar 5's answers; `adaptive`, the default for new topics, plans the whole ring at once with
`ring_plan` and the prices of `run_prices`. `registry` finds a profile by its name. The evaluator checks the policy and calls the profile; rules of
other products, which only serve comparison, are in `controller.backtest.rivals`.
"""
