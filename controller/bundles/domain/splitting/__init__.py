"""Splitting bundles: selects the hot bundles that are split now, and their cuts."""
