"""The switch that turns scalable topics off, as a broker's does."""

from __future__ import annotations

from fastapi import Depends
from fastapi import Request as HttpRequest

from controller.domain.errors import Retryable
from controller.web.shared_parameters import served_by

ASK_AGAIN_SECONDS = 60.0


async def _switched_on(request: HttpRequest) -> None:
    """Raise Retryable if scalable topics are turned off in the settings."""
    if not served_by(request).api.settings.scalable_topics_enabled:
        raise Retryable(
            "scalable topics are switched off here; set CLEAVE_SCALABLE_TOPICS_ENABLED=true for them",
            ASK_AGAIN_SECONDS,
        )


SWITCHED_ON = Depends(_switched_on)
