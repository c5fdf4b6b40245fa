"""Load records: how an aggregation's result gets in, which runs were merged, and the rates of a run in SQL."""
