"""What people's calls need where another server, such as Airflow, has them mounted and knows its users itself.

Knows nothing of Airflow: whoever mounts the app says who asks and what they may.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from controller.actions.rights import Right
from controller.bootstrap import Application
from controller.clock import SystemClock
from controller.domain.errors import AccessForbidden
from controller.pages.desk import Desk
from controller.services.watches.layout_feed import LayoutFeed
from controller.services.watches.topic_feed import TopicFeed
from controller.web.access import LONGEST_SUBJECT, Grant, Role

EVERY_NAMESPACE = ("*",)


class DeskServices:
    """The application of a desk, which follows the connection that the mounting server keeps."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._application: Application | None = None

    async def refresh(self) -> None:
        """Look up where Cleave is, in a thread: whoever keeps connections may take its time."""
        self._application = await run_in_threadpool(self._desk.application)

    @property
    def api(self) -> Application:
        """As of the last look."""
        if self._application is None:
            self._application = self._desk.application()
        return self._application

    @property
    def layouts(self) -> LayoutFeed:
        """For looking: nobody watches here, so nothing is to be woken."""
        return LayoutFeed(self.api.store, lambda: None, shard_count=self.api.settings.worker_shards)

    @property
    def topics(self) -> TopicFeed:
        """The same of topics."""
        return TopicFeed(self.api.store, lambda: None, clock=SystemClock())


async def grant_of_user(name: str, may: Callable[[Right], bool]) -> Grant:
    """What a user of the mounting server gets; `may` is asked, in a thread, for the rights to read, operate and administer.

    Raises AccessForbidden for one who may not even look.
    """
    subject = name[:LONGEST_SUBJECT]

    def granted() -> Grant:
        if may(Right.ADMINISTER):
            return Grant(Role.ADMIN, subject=subject)
        if may(Right.OPERATE):
            return Grant(Role.OPERATOR, namespaces=EVERY_NAMESPACE, subject=subject)
        if may(Right.READ):
            return Grant(Role.READER, subject=subject)
        raise AccessForbidden(f"user {subject} may not see plugins here; ask whoever gives rights in Airflow")

    return await run_in_threadpool(granted)
