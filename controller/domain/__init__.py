"""Ground floor: layouts, policies and decisions as plain values.

Standard library only (`key_hash` may use mmh3). Nothing here reads a clock, a file, a socket or a
database; instants arrive as integer milliseconds since the Unix epoch. Import from the modules: this
file re-exports nothing, so that a Spark executor loads only what it uses.
"""
