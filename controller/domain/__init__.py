"""Innermost layer of the package tree: layouts, policies and decisions as plain values.

The modules use the standard library only (`key_hash` also uses mmh3). No module reads a clock, a file, a socket or a
database; instants are passed in as integer milliseconds since the Unix epoch. Import from the modules: this file
re-exports nothing, so that a Spark executor loads only what it uses.
"""
