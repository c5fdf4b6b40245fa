"""The error of the local servers, in a module without dependencies on their libraries."""

from __future__ import annotations

from controller.domain.errors import Terminal


class DevstackFailed(Terminal):
    """A local server did not start or cannot run here. The message ends with the next step, or with the end of the
    server's log.
    """
