"""Counter samples and observations of consumers, taken by one process at a time (`lease`)."""
