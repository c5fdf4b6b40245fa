"""Connections to PostgreSQL: one reading of database URLs and one deadline mechanism, for every process and library here."""
