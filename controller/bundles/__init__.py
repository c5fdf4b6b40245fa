"""The older load balancing of Pulsar: where to split bundles, which to move, and where they go.

A package of its own with domain, store, brokers, services and reports; `bootstrap` is its composition root. It
depends on `controller.domain` and `controller.store.postgres`. Nothing of the scalable topics imports it.
"""
