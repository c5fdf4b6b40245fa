"""Evaluations that are due, their inputs, the decision log, and candidates."""
