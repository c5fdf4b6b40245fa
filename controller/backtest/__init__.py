"""Backtests: the cost of a policy on a recorded load, compared with the least possible cost.

`load_series` reads a load over time, `simulation` runs a rule on it over a real layout, `score` computes the cost,
and `optimum` computes the least cost that any rule can have. `rivals` holds the rules of other systems, for
comparison only.

All results follow from the arguments: the modules read no clock, and no files except the traces that `load_series` is
given.
"""
