"""Long computations in child processes, so that a server keeps answering other requests."""
