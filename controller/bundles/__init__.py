"""The older load balancing of Pulsar: where to split bundles, which to move, and where they go.

A house of its own: domain, store, brokers, services and reports, with `bootstrap` as its composition root. It stands on
`controller.domain` and `controller.store.postgres`; nothing of the scalable topics imports it.
"""
