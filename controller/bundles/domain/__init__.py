"""Bundle load balancing: which bundles to split and where, which to move and where to; pure functions of a cycle."""
