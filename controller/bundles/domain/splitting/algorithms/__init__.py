"""Split algorithms, which choose the cuts of a bundle. `splitting.policy` finds and runs one by name."""
