"""Split algorithms, which choose the cuts of a bundle: one module per algorithm. `registry` finds and runs one by name."""
