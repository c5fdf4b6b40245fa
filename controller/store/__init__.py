"""Reads and writes the control tables, in PostgreSQL through SQLAlchemy Core. No other package writes them.

The functions take `tx`, a connection with a transaction in progress (`Store.transaction`), so that the caller decides
which statements commit together. Rows become frozen dataclasses. `postgres/errors` translates errors of the driver
into errors of Cleave. Locks are always taken in the order topic row, operation rows, other rows. This file re-exports
nothing.
"""
