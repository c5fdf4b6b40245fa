"""Use cases: collect reports, aggregate them, balance a cluster (`balancer`), and acts that a person asks for."""
