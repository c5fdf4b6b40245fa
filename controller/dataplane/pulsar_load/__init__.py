"""What a Pulsar cluster's brokers report: counters of logs from their metrics pages, consumers from topic statistics.

Given to the data planes `pulsar` and `pulsar_scalable`, whose `sample` and `consumers` are these. Nothing is imported here: a client needs the
HTTP session alone.
"""
