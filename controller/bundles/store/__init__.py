"""Namespaces, loads, cycles and proposals of the balancer in PostgreSQL. Only this package writes them."""
