"""Contains the data planes: the protocols (`base`, `log_client`), the adapters, and the registry of adapters by name."""
