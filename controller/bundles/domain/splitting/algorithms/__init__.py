"""Split algorithms, which choose the cuts of a bundle. `registry` finds and runs one by name."""
