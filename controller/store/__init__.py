"""The store: PostgreSQL through SQLAlchemy Core, and the only writer of control tables.

Plain functions that take `tx`, a connection with a transaction in progress (`Store.transaction`), so that a caller
decides what happens together. Rows become frozen dataclasses; driver errors become Cleave's in `postgres/constraints`.
Locks are always taken topic row first, then operations, then everything else. This file re-exports nothing.
"""
