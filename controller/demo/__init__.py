"""`make demo`: all parts of Cleave on this machine, with real processes and live traffic.

The package may import every other package, and no other package imports it. The demo has no data path of its own:
producers and consumers use the client, load goes through collector, Spark and Airflow, and the worker performs the
actions.
"""
