"""Bundle load balancing: where to split a namespace's bundles, which to move, and whither; pure functions of a cycle."""
