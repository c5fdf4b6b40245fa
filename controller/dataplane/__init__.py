"""Contains the data planes: the protocols (`base`), the adapters, and the registry of adapters by name."""
