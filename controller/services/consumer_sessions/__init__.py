"""The leader's side of ordered consumption: sessions of consumers, and who of them owns which bucket.

`requests` is what consumers ask and are told, `sessions` one subscription in memory, `leader` the thread that writes and pushes.
"""
