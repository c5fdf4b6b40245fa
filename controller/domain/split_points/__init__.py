"""Computes where to cut a segment. The profiles decide whether to cut it."""
