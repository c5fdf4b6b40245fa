"""The embedded data plane: real logs in PostgreSQL (schema `embedded`), with no broker installed.

`EmbeddedDataPlane` is what the controller calls, `EmbeddedLogClient` what applications produce and consume through. The
rules that must hold for every caller (dense offsets, nothing after the fence) are in the schema.
"""

from controller.dataplane.embedded.log_client import EmbeddedLogClient
from controller.dataplane.embedded.plane import EmbeddedDataPlane

__all__ = ["EmbeddedDataPlane", "EmbeddedLogClient"]
