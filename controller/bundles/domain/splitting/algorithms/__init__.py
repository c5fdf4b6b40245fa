"""Where to cut a bundle: one module for each algorithm. `registry` finds an algorithm by name and asks it."""
