"""Reads load from a Pulsar cluster's brokers: counters of logs from their metrics pages, consumers from topic
statistics.

The data planes `pulsar` and `pulsar_scalable` delegate `sample` and `consumers` to this package. This file
imports nothing, because a client needs only the HTTP session.
"""
