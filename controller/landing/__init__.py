"""Parquet files between the collector and the aggregation, and the history behind it.

The collector appends one file of counter samples a tick (`area`), old ticks are compacted (`compaction`), the
aggregation reads the files of its window and keeps every segment's rates by day (`history`). Everything is
reached through one small file system (`location`), local paths and object stores alike. What a sample means is
the domain's, how rates come out of samples is the aggregation's.
"""
