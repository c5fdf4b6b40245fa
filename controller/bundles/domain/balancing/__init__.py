"""Balancing: which bundles leave which broker (`shedding`) and where they go (`placement`), decided together."""
