"""`make demo`: the whole of Cleave on this machine, with real processes and live traffic, told as a story.

Stands on everything and is imported by nothing. Nothing here is special to the demo's data path: producers and
consumers use the client, load goes through collector, Spark and Airflow, acts through the worker.
"""
