"""The same store as in `tests/integration/store`."""

from tests.integration.store.conftest import driver as driver
