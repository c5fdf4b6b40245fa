"""Parquet files between the collector and the aggregation, and the history of rates.

The collector appends one file of counter samples per tick (`area`), old ticks are compacted (`compaction`), and the
aggregation reads the files of its window and stores every segment's rates by day (`history`). All files are accessed
through `location`, on local paths and object stores alike. The domain defines the meaning of a sample. The
aggregation computes rates from samples.
"""
