"""Triggers that follow layout changes, or wait for an operation."""
