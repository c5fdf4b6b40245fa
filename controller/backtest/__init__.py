"""Backtests: what a policy would have cost on a recorded load, and how far that is from the best possible.

`load_series` reads a load over time, `simulation` carries a rule through it over the real layout, `score` counts what
that cost, `optimum` is the least any rule can pay. `rivals` holds the rules of other systems, for comparison only.

Everything here is computed from its arguments: no clock, no file but the traces that `load_series` is told to read.
"""
