"""Spark jobs: pure functions from DataFrames to DataFrames, and main functions that read and write files.

They depend on the domain and on the backtest package, and on no other part of Cleave: no database, no landing area.
Aggregations use SQL only, so that they run in the JVM alone, on a classic session and over Spark Connect alike.
"""
