"""Namespaces, loads, cycles and proposals of the balancer in PostgreSQL, written here alone."""
