"""The same store as in `tests/integration/store`."""

from tests.integration.store.conftest import driver

__all__ = ["driver"]
