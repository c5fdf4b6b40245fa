"""Load records: how an aggregation's result gets in, which runs were merged, and the aggregation's twin in SQL."""
