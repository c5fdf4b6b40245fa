"""Waiting for what was asked for."""
