"""The three lanes of an evaluation (PIP-483, PIP-486), one a module, and what they share.

`ground` holds the inputs and gathers the refusals, `cooldowns` are those of all lanes, and `merge_gates` is what a pair
of segments passes before it may merge.
"""
