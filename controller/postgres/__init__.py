"""Connections to PostgreSQL for all processes and libraries of Cleave.

This package reads database URLs, begins sessions, enforces deadlines and classifies SQLSTATEs.
"""
