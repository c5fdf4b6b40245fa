"""Services for the calls of people in an app that another server, such as Airflow, mounts and authenticates.

The module does not depend on Airflow; `web.access.grant_of_user` gives the users of the mounting server their rights.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool

from controller.bootstrap import Application
from controller.clock import SystemClock
from controller.pages.context import PageContext
from controller.services.watches.layout_feed import LayoutFeed
from controller.services.watches.topic_feed import TopicFeed


class ContextServices:
    """Services on the application of a `PageContext`, which follows the connection that the mounting server stores."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._application: Application | None = None

    async def refresh(self) -> None:
        """Read the connection again, in a thread, because the mounting server's secrets backend may be slow."""
        self._application = await run_in_threadpool(self._context.application)

    @property
    def api(self) -> Application:
        """The application as of the last `refresh`; before the first, the connection is read now."""
        if self._application is None:
            self._application = self._context.application()
        return self._application

    @property
    def layouts(self) -> LayoutFeed:
        """Layouts for reading only; no client watches here."""
        return LayoutFeed(
            self.api.store, lambda: None, shard_count=self.api.settings.worker_shards, clock=SystemClock()
        )

    @property
    def topics(self) -> TopicFeed:
        """Topics for reading only; no client watches here."""
        return TopicFeed(self.api.store, lambda: None, clock=SystemClock())
