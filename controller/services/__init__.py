"""One use case a module; none imports another, they meet in the store."""
