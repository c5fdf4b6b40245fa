"""Contains the embedded data plane: logs in PostgreSQL (schema `embedded`), without a broker.

The controller uses `EmbeddedDataPlane`; applications produce and consume through `EmbeddedLogClient`. The
schema enforces the rules for every caller: offsets without gaps, and no append after the fence.
"""

from controller.dataplane.embedded.log_client import EmbeddedLogClient
from controller.dataplane.embedded.plane import EmbeddedDataPlane

__all__ = ["EmbeddedDataPlane", "EmbeddedLogClient"]
