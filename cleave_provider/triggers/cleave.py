"""Triggers. Blocking calls of PostgreSQL run in threads, so that the triggerer's event loop continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from cleave_provider.airflow_compatibility import AirflowFailException
from cleave_provider.hooks.cleave import CleaveHook
from controller.domain.errors import Retryable, Terminal
from controller.domain.formatting import shown
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
KINDS = (*(str(kind) for kind in OperationKind if kind not in _NO_LAYOUT), "mirrored", "recover")
"""Kinds of layout changes. A broker made a change of kind `mirrored`; a change of kind `recover` was read
from the logs.
"""
WATERMARK = "cleave_layout_changes_resume_at"
"""Key of the resume instant in the asset's state, since Airflow 3.3."""
WAIT_SECONDS = 30.0
"""Maximum seconds that a thread waits for a notification before it checks whether it was cancelled."""
APART_SECONDS = 5.0
"""Seconds between two events, so that the scheduler has created a run for an event before the next one
arrives. Airflow 3.3 and before may leave an event that arrives earlier unread until another one arrives
(apache/airflow#56050).
"""
PAUSE_SECONDS = 60.0
"""Seconds between two attempts with a connection that does not work, until a person corrects it."""


def _demand_texts(name: str, value: object) -> None:
    """Raise ValueError unless the argument `name` is a sequence of texts. One text would be read as its letters."""
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(item, str) for item in value)
    ):
        raise ValueError(f"{name}={shown(value)} must be a list of texts")


class LayoutChangeTrigger(BaseEventTrigger):
    """Fires after layout changes, for an asset's watcher: `{"changes": [...]}`. Each change has the form of
    the `extra` of Cleave's own events.

    The trigger listens to PostgreSQL, so it needs no worker that knows Airflow. Each change is reported at
    least once. Changes of the last minute may be reported again after the triggerer was restarted or the
    database was unavailable; topic and epoch identify a change. Since Airflow 3.3, changes made while no
    triggerer ran are reported later; before 3.3 they are not reported.

    :param topics: topics with or without their scheme; empty: all.
    :param kinds: `split`, `merge`, `create`, ...; empty: all.
    """

    def __init__(
        self, topics: Sequence[str] = (), kinds: Sequence[str] = (), cleave_conn_id: str = "cleave"
    ) -> None:
        """Store the arguments. Raises ValueError for topics or kinds that are no list of texts, and for a kind that
        is not in `KINDS`.
        """
        super().__init__()
        _demand_texts("topics", topics)
        _demand_texts("kinds", kinds)
        unknown = sorted(set(kinds) - set(KINDS))
        if unknown:
            raise ValueError(
                f"there are no layout changes of kind {', '.join(unknown)}; use {', '.join(KINDS)}"
            )
        self.topics = sorted(topics)
        self.kinds = sorted(kinds)
        self.cleave_conn_id = cleave_conn_id
        self._resume_at: str | None = None
        """Instant from which a new connection continues if Airflow stores no state of the asset."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments, as Airflow requires. Triggers with the same arguments are one
        trigger, regardless of the number of DAGs that use it.
        """
        arguments = {"topics": self.topics, "kinds": self.kinds, "cleave_conn_id": self.cleave_conn_id}
        return f"{__name__}.LayoutChangeTrigger", arguments

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Yield an event for each batch of layout changes, at most one every APART_SECONDS. Never returns.

        An error is logged, and the changes are followed again after a pause.
        """
        while True:
            try:
                async with aclosing(self._changes()) as changes:
                    async for batch in changes:
                        yield TriggerEvent({"changes": batch})
                        await asyncio.sleep(APART_SECONDS)  # changes of this time form one event
            except Retryable as error:
                self.log.warning("layout changes are interrupted and will be followed again: %s", error)
                await asyncio.sleep(max(error.delay_seconds, 1.0))
            except (Terminal, AirflowFailException) as error:
                self.log.error("layout changes cannot be followed: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception:  # The triggerer would otherwise restart the trigger at once, again and again.
                self.log.exception("layout changes cannot be followed")
                await asyncio.sleep(PAUSE_SECONDS)

    async def _changes(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield batches of layout changes, oldest first, without end. Begin at the stored instant, and store
        after each wait from which instant the next connection continues. Raises the errors of the connection
        and of the follower.
        """
        access = await CleaveHook(self.cleave_conn_id).async_access()
        since = await self._stored_instant() or self._resume_at
        thread = ThreadPoolExecutor(1, thread_name_prefix="cleave-layout-changes")
        follower_future = thread.submit(self._follow, access, since)
        try:
            follower = await asyncio.wrap_future(follower_future)
            in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
            while True:
                changes = await in_thread(follower.wait, WAIT_SECONDS)
                if changes:
                    yield changes
                self._resume_at = follower.resume_at or self._resume_at
                if follower.resume_at != since:
                    since = follower.resume_at
                    await self._store_instant(since)
        finally:
            _close(follower_future, thread)

    def _follow(self, access: dict[str, Any], since: str | None) -> LayoutChanges:
        """Return a follower of the changes from the instant `since` on. Blocks."""
        from controller import tasks

        return tasks.LayoutChanges(**access, since=since, topics=self.topics, kinds=self.kinds)

    async def _stored_instant(self) -> str | None:
        """Return the stored instant from which to continue. None if nothing is stored, before Airflow 3.3, or
        if several assets have this trigger, which is logged.
        """
        state = getattr(self, "asset_state_store", None)
        if state is None:
            return None
        try:
            instant = await state.aget(WATERMARK, default=None)
        except ValueError:
            self.log.warning(
                "several assets have this trigger, so changes made while no triggerer runs are not reported"
            )
            return None
        return None if instant is None else str(instant)

    async def _store_instant(self, instant: str | None) -> None:
        """Store the instant from which to continue in the state of the asset. Does nothing before Airflow
        3.3, or if several assets have this trigger.
        """
        state = getattr(self, "asset_state_store", None)
        if state is not None:
            with suppress(ValueError):
                await state.aset(WATERMARK, instant)


def _close(follower_future: Future[LayoutChanges], thread: ThreadPoolExecutor) -> None:
    """Close the follower that the thread has created or is creating, and let the thread end. Does not wait,
    because a cancelled trigger must not wait.
    """

    def close() -> None:  # runs after `follower_future`, in the same thread
        if follower := _result_of(follower_future):
            follower.close()

    if follower := _result_of(follower_future):
        follower.interrupt()
    thread.submit(close)
    thread.shutdown(wait=False)


def _result_of(follower_future: Future[LayoutChanges]) -> LayoutChanges | None:
    """Return the follower, or None if it was not created yet or could not be created."""
    if not follower_future.done() or follower_future.cancelled() or follower_future.exception() is not None:
        return None
    return follower_future.result()


class OperationTrigger(BaseTrigger):
    """Fires once, when the operation has ended: `{"operation": ...}`, or `{"failure": "one line"}`.

    :param operation_id: id of any operation in the journal.
    :param poll_seconds: seconds between two checks. If the database or Airflow's API server is unavailable, the check is
        repeated.
    """

    def __init__(
        self, operation_id: int | str, cleave_conn_id: str = "cleave", poll_seconds: float = 5.0
    ) -> None:
        super().__init__()
        self.operation_id = operation_id
        self.cleave_conn_id = cleave_conn_id
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments, as Airflow requires."""
        arguments = {
            "operation_id": self.operation_id,
            "cleave_conn_id": self.cleave_conn_id,
            "poll_seconds": self.poll_seconds,
        }
        return f"{__name__}.OperationTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: the operation once it has ended, or the failure if it was aborted or cannot be
        read.
        """
        try:
            yield TriggerEvent({"operation": await self._ended()})
        except (Terminal, AirflowFailException) as error:
            yield TriggerEvent({"failure": str(error)})

    async def _ended(self) -> dict[str, Any]:
        """Check every `poll_seconds` until the operation has ended, and return it. Repeats the check after a
        Retryable. Raises Terminal or AirflowFailException if the operation was aborted or cannot be read.
        """
        while True:
            try:
                # The connection is looked up each time, because its password may have been renewed.
                access = await CleaveHook(self.cleave_conn_id).async_access()
                operation = await asyncio.to_thread(self._look, access)
            except Retryable as error:
                self.log.warning(
                    "operation %s could not be read and is checked again: %s", self.operation_id, error
                )
                operation = None
            if operation is not None:
                return operation
            await asyncio.sleep(self.poll_seconds)

    def _look(self, access: dict[str, Any]) -> dict[str, Any] | None:
        """Return the operation if it is done; None while it is in progress. Blocks. Raises the errors of
        `tasks.ended_operation`.
        """
        from controller import tasks

        return tasks.ended_operation(**access, operation_id=self.operation_id)
