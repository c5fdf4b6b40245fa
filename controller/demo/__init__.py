"""`make demo`: the whole of Cleave on this machine, with real processes and live traffic.

It may import everything, and nothing imports it. The demo has no data path of its own: producers and consumers use the
client, load goes through collector, Spark and Airflow, acts through the worker.
"""
