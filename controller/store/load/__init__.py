"""Load records: writing the result of an aggregation, merged runs, key histograms, and the SQL engine."""
