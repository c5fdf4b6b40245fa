"""Servers as child processes on this machine: PostgreSQL, Spark Connect, Airflow, all from wheels.

For the demo, the tests and the benchmarks; production brings its own servers. Each component is a
class with `start`, `stop` and the context-manager pair, binds loopback only, keeps its files in the
directory it is given and dies with the process that started it. Nothing happens at import.
"""
