"""Long computations in processes of their own, so that a server answers everybody else meanwhile."""
