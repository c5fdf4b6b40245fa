"""Spark jobs: pure functions from DataFrames to DataFrames, and mains that read and write files.

They know the domain and nothing else of Cleave: no database, no landing area. Plans are SQL only, so that they
run in the JVM alone, on a classic session and over Spark Connect alike.
"""
