"""Bundle load balancing, the older load balancing of Pulsar: splits bundles and moves them between brokers.

The package has its own domain, store, brokers, services and reports; `bootstrap` is its composition root. It depends on
`controller.domain` and `controller.store.postgres`. Code of scalable topics does not import it.
"""
