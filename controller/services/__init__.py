"""Application services, one module for each use case. The services share the store."""
