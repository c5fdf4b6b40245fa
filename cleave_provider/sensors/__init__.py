"""Sensors that wait for operations."""
