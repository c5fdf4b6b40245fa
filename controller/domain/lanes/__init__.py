"""The three lanes of an evaluation (PIP-483, PIP-486), one module each, and the parts that they share.

`evaluation_context` holds the inputs and collects the refusals, `cooldowns` holds the cooldowns of all lanes,
`load_freshness` the age above which a load record is stale, and `merge_conditions` the conditions that a pair of segments
must meet before it may merge. Each lane's `answer` returns actions, and adds its refusals to the context.
"""
