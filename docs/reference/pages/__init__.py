"""Pages of the reference, generated from the code."""
