"""Computes where to cut a segment. Whether to cut it is decided elsewhere."""
