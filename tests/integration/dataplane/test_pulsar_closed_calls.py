"""Calls to a broker's admin API whose connections are closed: each ends with an error of Cleave."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.dataplane.pulsar import admin
from controller.dataplane.pulsar.admin import AdminCalls, Ask
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.domain.errors import DataPlaneUnavailable
from tests.support.scripted_broker import Conversation, ScriptedBroker
from tests.support.waiting import wait_until

LOOK = Ask("GET", "clusters", "look")
SECONDS = 30.0


def test_a_request_that_waits_for_a_thread_ends_with_the_close(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "PARALLEL_REQUESTS", 1)
    calls = AdminCalls(PulsarAccess(admin_url=broker.url), call_timeout_seconds=SECONDS)
    begun, goes_on = threading.Event(), threading.Event()

    def answer_late(conversation: Conversation) -> None:
        begun.set()
        goes_on.wait(SECONDS)
        conversation.answer(200, b"[]", {})

    broker.behaves(answer_late)
    with ThreadPoolExecutor(1) as callers:
        both = callers.submit(calls.ask_all, [LOOK, LOOK], calls.deadline())
        assert begun.wait(SECONDS)
        wait_until(lambda: not calls._threads._work_queue.empty())
        calls.close()
        goes_on.set()
        first, second = both.result(SECONDS)

    assert getattr(first, "status", None) == 200
    assert isinstance(second, DataPlaneUnavailable)
    assert "look: the connections were closed; create another client" in str(second)
    assert len(broker.received) == 1


def test_after_the_close_nothing_is_sent(broker: ScriptedBroker) -> None:
    calls = AdminCalls(PulsarAccess(admin_url=broker.url), call_timeout_seconds=SECONDS)

    calls.close()

    with pytest.raises(DataPlaneUnavailable, match="look: the connections were closed"):
        calls.ask(LOOK, calls.deadline())
    assert [type(error) for error in calls.ask_all([LOOK, LOOK], calls.deadline())] == [
        DataPlaneUnavailable
    ] * 2
    assert broker.received == []


def test_the_close_ends_the_connections_that_are_kept(broker: ScriptedBroker) -> None:
    calls = AdminCalls(PulsarAccess(admin_url=broker.url), call_timeout_seconds=SECONDS)
    conversations: list[Conversation] = []

    def answer(conversation: Conversation) -> None:
        conversations.append(conversation)
        conversation.answer(200, b"[]", {})

    broker.behaves(answer)
    calls.ask(LOOK, calls.deadline())
    [conversation] = conversations
    assert not conversation.close_connection

    calls.close()

    wait_until(lambda: conversation.close_connection)
