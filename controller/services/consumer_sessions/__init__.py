"""The leader's side of ordered consumption: consumer sessions, and the assignment of buckets to consumers.

`requests` defines what consumers request and receive, `sessions` keeps one subscription in memory and decides when a
disconnected consumer loses its buckets, and `leader` is the thread that writes rows and pushes assignments.
"""
