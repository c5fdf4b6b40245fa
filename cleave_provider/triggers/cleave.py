"""Triggers. What blocks (PostgreSQL) is done in threads, so that the triggerer's loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from cleave_provider.hooks.cleave import CleaveHook
from cleave_provider.versions import AirflowFailException
from controller.domain.errors import Retryable, Terminal
from controller.domain.operation import OperationKind

if TYPE_CHECKING:
    from controller.tasks import LayoutChanges

_NO_LAYOUT = frozenset(
    {
        OperationKind.ATTACH,
        OperationKind.SEEK,
        OperationKind.SUBSCRIPTION_CREATE,
        OperationKind.SUBSCRIPTION_DELETE,
    }
)
KINDS = (*(str(one) for one in OperationKind if one not in _NO_LAYOUT), "mirrored", "recover")
"""Kinds of layout changes: `mirrored` was made by a broker, `recover` was read from the logs."""
WATERMARK = "cleave_layout_changes_resume_at"
"""Key in the asset's state, since Airflow 3.3."""
WAIT_SECONDS = 30.0
"""The longest that a thread waits for a notification before it looks whether it is still wanted."""
APART_SECONDS = 5.0
"""Between two events, so that the scheduler has made a run of the one before the next comes. Airflow 3.3 and before may leave an
event that comes meanwhile unread until another one comes (apache/airflow#56050)."""
PAUSE_SECONDS = 60.0
"""Between two attempts with a connection that cannot serve: somebody has to put it right."""


class LayoutChangeTrigger(BaseEventTrigger):
    """Fires when layouts have changed, for an asset's watcher: `{"changes": [...]}`, each as `extra` of Cleave's own events.

    It listens to PostgreSQL, so it needs no worker that knows Airflow. Each change is told once at least: those of the
    last minute perhaps again when the triggerer was restarted or the database was away; topic and epoch say which change it is.
    Since Airflow 3.3 what happened while no triggerer was up is told later; before, it is not.

    :param topics: with or without their scheme; none: all.
    :param kinds: `split`, `merge`, `create`, ...; none: all.
    """

    def __init__(
        self, topics: Sequence[str] = (), kinds: Sequence[str] = (), cleave_conn_id: str = "cleave"
    ) -> None:
        super().__init__()
        unknown = sorted(set(kinds) - set(KINDS))
        if unknown:
            raise ValueError(
                f"there are no layout changes of kind {', '.join(unknown)}; use {', '.join(KINDS)}"
            )
        self.topics = sorted(topics)
        self.kinds = sorted(kinds)
        self.cleave_conn_id = cleave_conn_id
        self._resume_at: str | None = None
        """How far it came, for a new connection where Airflow keeps nothing of the asset."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See Airflow's. Triggers with the same arguments are one, however many DAGs have them."""
        kept = {"topics": self.topics, "kinds": self.kinds, "cleave_conn_id": self.cleave_conn_id}
        return f"{__name__}.LayoutChangeTrigger", kept

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """See the class."""
        while True:
            try:
                async with aclosing(self._changes()) as changes:
                    async for some in changes:
                        yield TriggerEvent({"changes": some})
                        await asyncio.sleep(APART_SECONDS)  # what comes meanwhile is told together
            except Retryable as error:
                self.log.warning("layout changes are followed again: %s", error)
                await asyncio.sleep(max(error.delay_seconds, 1.0))
            except (Terminal, AirflowFailException) as error:
                self.log.error("layout changes cannot be followed: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception:  # the triggerer would make the trigger anew at once, again and again
                self.log.exception("layout changes cannot be followed")
                await asyncio.sleep(PAUSE_SECONDS)

    async def _changes(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        access = await CleaveHook(self.cleave_conn_id).async_access()
        since = await self._remembered() or self._resume_at
        thread = ThreadPoolExecutor(1, thread_name_prefix="cleave-layout-changes")
        begun = thread.submit(self._follow, access, since)
        try:
            following = await asyncio.wrap_future(begun)
            in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
            while True:
                changes = await in_thread(following.wait, WAIT_SECONDS)
                if changes:
                    yield changes
                self._resume_at = following.resume_at or self._resume_at
                if following.resume_at != since:
                    since = following.resume_at
                    await self._remember(since)
        finally:
            _give_back(begun, thread)

    def _follow(self, access: dict[str, Any], since: str | None) -> LayoutChanges:
        from controller import tasks

        return tasks.LayoutChanges(**access, since=since, topics=self.topics, kinds=self.kinds)

    async def _remembered(self) -> str | None:
        state = getattr(self, "asset_state_store", None)
        if state is None:
            return None
        try:
            found = await state.aget(WATERMARK, default=None)
        except ValueError:
            self.log.warning(
                "several assets have this trigger, so what happens while no triggerer is up is not told"
            )
            return None
        return None if found is None else str(found)

    async def _remember(self, instant: str | None) -> None:
        state = getattr(self, "asset_state_store", None)
        if state is not None:
            with suppress(ValueError):
                await state.aset(WATERMARK, instant)


def _give_back(begun: Future[LayoutChanges], thread: ThreadPoolExecutor) -> None:
    """End what was begun in the thread, or is being begun there: a trigger that is cancelled does not wait for it."""

    def close() -> None:  # comes after `begun`, in the one thread
        if following := _made(begun):
            following.close()

    if following := _made(begun):
        following.interrupt()
    thread.submit(close)
    thread.shutdown(wait=False)


def _made(begun: Future[LayoutChanges]) -> LayoutChanges | None:
    """None: not yet, or never."""
    if not begun.done() or begun.cancelled() or begun.exception() is not None:
        return None
    return begun.result()


class OperationTrigger(BaseTrigger):
    """Fires once, when the operation has ended: `{"operation": ...}`, or `{"failure": "one line"}`.

    :param operation_id: of any operation in the journal.
    :param poll_seconds: between two looks. A database that is away is looked at again.
    """

    def __init__(
        self, operation_id: int | str, cleave_conn_id: str = "cleave", poll_seconds: float = 5.0
    ) -> None:
        super().__init__()
        self.operation_id = operation_id
        self.cleave_conn_id = cleave_conn_id
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See Airflow's."""
        kept = {
            "operation_id": self.operation_id,
            "cleave_conn_id": self.cleave_conn_id,
            "poll_seconds": self.poll_seconds,
        }
        return f"{__name__}.OperationTrigger", kept

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """See the class."""
        try:
            yield TriggerEvent({"operation": await self._ended()})
        except (Terminal, AirflowFailException) as error:
            yield TriggerEvent({"failure": str(error)})

    async def _ended(self) -> dict[str, Any]:
        while True:
            access = await CleaveHook(self.cleave_conn_id).async_access()  # a password may have been renewed
            try:
                operation = await asyncio.to_thread(self._look, access)
            except Retryable as error:
                self.log.warning("looking at operation %s again: %s", self.operation_id, error)
                operation = None
            if operation is not None:
                return operation
            await asyncio.sleep(self.poll_seconds)

    def _look(self, access: dict[str, Any]) -> dict[str, Any] | None:
        from controller import tasks

        return tasks.ended_operation(**access, operation_id=self.operation_id)
