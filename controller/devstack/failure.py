"""The one error of the local stack, apart from the code that needs its libraries."""

from __future__ import annotations

from controller.domain.errors import Terminal


class DevstackFailed(Terminal):
    """A local server did not start or cannot run here. The message ends with what to do, or with the end of its log."""
