"""Bundle load balancing: selects bundles to split with their cuts, and bundles to move with their destinations. Pure functions of a
cycle.
"""
