"""Services for the calls of people in an app that another server, such as Airflow, mounts and authenticates.

The module does not depend on Airflow: the mounting server passes the users and their rights.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from controller.actions.rights import Right
from controller.bootstrap import Application
from controller.clock import SystemClock
from controller.domain.errors import AccessForbidden
from controller.pages.context import PageContext
from controller.services.watches.layout_feed import LayoutFeed
from controller.services.watches.topic_feed import TopicFeed
from controller.web.access import LONGEST_SUBJECT, Grant, Role

EVERY_NAMESPACE = ("*",)


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
        return LayoutFeed(self.api.store, lambda: None, shard_count=self.api.settings.worker_shards)

    @property
    def topics(self) -> TopicFeed:
        """Topics for reading only; no client watches here."""
        return TopicFeed(self.api.store, lambda: None, clock=SystemClock())


async def grant_of_user(name: str, may: Callable[[Right], bool]) -> Grant:
    """Return the grant of a user of the mounting server: the highest role of which the user has the right (administer, operate in every
    namespace, read).

    `may` is called in a thread. The subject of the grant is `name`, cut to `LONGEST_SUBJECT` characters. Raises AccessForbidden for a user
    without any of these rights.
    """
    subject = name[:LONGEST_SUBJECT]

    def granted() -> Grant:
        if may(Right.ADMINISTER):
            return Grant(Role.ADMIN, subject=subject)
        if may(Right.OPERATE):
            return Grant(Role.OPERATOR, namespaces=EVERY_NAMESPACE, subject=subject)
        if may(Right.READ):
            return Grant(Role.READER, subject=subject)
        raise AccessForbidden(
            f"user {subject} may not see plugins here; ask an administrator of Airflow for the right"
        )

    return await run_in_threadpool(granted)
