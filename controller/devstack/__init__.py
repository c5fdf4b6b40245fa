"""Servers as child processes on this machine: PostgreSQL, Spark Connect and Airflow, all from wheels.

For the demo, the tests and the benchmarks; production uses its own servers. Each component is a class with `start`,
`stop` and the context-manager methods, binds loopback only, keeps its files in the directory it is given, and ends
with the process that started it. Importing the package has no effect.
"""
