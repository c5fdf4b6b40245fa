"""What the profiles share: the parts of an evaluation that are the same under each of them.

`evaluation_context` holds the inputs and collects the refusals, `cooldowns` holds the cooldowns of all lanes,
`load_freshness` the age above which a load record is stale, and `idle_buckets` the rule when entry buckets are given up.
The three lanes of Pulsar are in `controller.domain.profiles.pip483`, the only profile that evaluates them.
"""
