"""Benchmarks: each `bench_*` is a program that prints one line of JSON; `python -m benchmarks` runs all of them."""
