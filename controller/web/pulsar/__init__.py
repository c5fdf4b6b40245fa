"""Pulsar's admin API of scalable topics: the paths, verbs, bodies and JSON of Pulsar 5, so that its own client works unchanged.

Where Pulsar answers 500 for what was asked wrongly, the answer here is a 4xx with its reason. What is said beyond Pulsar stands in
fields that its client passes over. How to use it: docs/how-to/use-pulsars-admin-client.md.
"""
