"""Splitting bundles: which of them are hot, which are split now, and where each is cut."""
