"""Parquet files between the collector and the aggregation, and the history behind it.

The collector appends one file of counter samples a tick (`area`), old ticks are compacted (`compaction`), the
aggregation reads the files of its window and keeps every segment's rates by day (`history`). All files are reached
through `location`, local paths and object stores alike. What a sample means stands in the domain. The aggregation makes
rates of samples.
"""
