"""The rule sets a policy may name: one module a profile, and what only one of them needs.

`pip483` gives Pulsar 5's answers; `adaptive`, the default for new topics, plans the whole ring at once with `ring_plan`.
`registry` finds a profile by its name. The evaluator checks the policy and asks the profile; peers' rules that are only
ever compared with are in `controller.backtest.rivals`.
"""
