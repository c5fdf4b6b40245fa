"""Benchmarks: each `bench_*` runs for itself and prints one line of JSON; `python -m benchmarks` runs them all."""
