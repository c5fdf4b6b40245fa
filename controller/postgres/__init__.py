"""Connections to PostgreSQL, for every process and library here.

One reading of database URLs, one way to begin a session, one deadline mechanism and one table of SQLSTATEs.
"""
