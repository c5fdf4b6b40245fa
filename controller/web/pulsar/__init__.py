"""Pulsar's admin API of scalable topics: the paths, verbs, bodies and JSON of Pulsar 5, so that its own client works unchanged.

Where Pulsar answers 500 for an invalid request, Cleave answers 4xx with a reason. Additional information is in fields that Pulsar's client
ignores. How to use it: docs/how-to/use-pulsars-admin-client.md.
"""
