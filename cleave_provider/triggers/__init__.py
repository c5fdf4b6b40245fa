"""What the triggerer runs: following layout changes, and an operation."""
