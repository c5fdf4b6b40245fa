"""One use case a module. None imports another; they share the store."""
