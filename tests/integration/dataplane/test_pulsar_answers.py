"""A broker that misbehaves: late, cut off, elsewhere, unwilling. Every call ends on time with an error that says what."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.dataplane.base import LogState, Successor
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.barrier import BARRIER
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.cursors import WHOLE_ENTRY
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.dataplane.pulsar.requirements import Namespaces, Severity
from controller.dataplane.pulsar.stored_entries import SentBatch
from controller.dataplane.pulsar.topic_end import TopicEnd
from controller.domain.errors import (
    DataGone,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    InvalidInput,
    Retryable,
    SegmentNotFound,
    Terminal,
)
from tests.support.scripted_broker import Behaviour, Conversation, ScriptedBroker, scripted_broker

LOG = "persistent://t/n/x-segment-0000-ffff-0"
PATH = "/admin/v2/persistent/t/n/x-segment-0000-ffff-0"
INTERNAL: dict[str, object] = {
    "state": "LedgerOpened",
    "numberOfEntries": 0,
    "entriesAddedCounter": 0,
    "lastConfirmedEntry": "7:-1",
    "ledgers": [],
    "cursors": {},
}
"""Internal statistics of an empty topic."""
TERMINATED = {"state": "Terminated"}


@pytest.fixture
def plane(broker: ScriptedBroker) -> Iterator[PulsarDataPlane]:
    """The plane on it, with little patience."""
    plane = PulsarDataPlane(PulsarAccess(admin_url=broker.url, token="hush"), call_timeout_seconds=0.4)
    yield plane
    plane.close()


class TestTime:
    @pytest.mark.parametrize("behaviour", ["is_silent", "drips"])
    def test_a_call_ends_when_its_time_is_over(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, behaviour: str
    ) -> None:
        broker.behaves(getattr(broker, behaviour)())

        with pytest.raises(DataPlaneTimeout, match=f"check {LOG}: no answer within 0.4 s"):
            plane.segment_state(LOG)

    def test_requests_of_one_call_share_its_time(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        broker.behaves(broker.says(204), broker.is_silent())

        with pytest.raises(DataPlaneTimeout, match="subscribe 'a'"):
            plane.create_segment(LOG, ["a", "b", "c"])

    def test_a_redirect_that_is_slow_costs_the_same_time(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        broker.behaves(broker.says(307, Location=f"{broker.url}{PATH}"), broker.is_silent())

        with pytest.raises(DataPlaneTimeout):
            plane.terminate_segment(LOG)

    def test_what_was_late_is_asked_once(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        """A repeat is the caller's, who knows whether it still may."""
        broker.behaves(broker.is_silent())
        with pytest.raises(DataPlaneTimeout):
            plane.terminate_segment(LOG)

        assert len(broker.received) == 1


class TestManyAtOnce:
    """Calls for all logs of an operation: one request that fails fails the call, and a repeat finds what was done."""

    left, right = Successor(f"{LOG}1", (LOG,), ("s",)), Successor(f"{LOG}2", (LOG,), ("s",))

    def test_what_one_broker_refuses_for_now_is_an_error_of_the_whole_call(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        broker.behaves(broker.says(204), broker.says(503), broker.says(200, {"subscriptions": {}}))

        with pytest.raises(DataPlaneUnavailable):
            plane.create_successors([self.left, self.right])
        assert all("/subscription/" not in received.path for received in broker.received)

    def test_a_predecessor_that_says_nothing_stops_it_before_any_cursor(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        broker.behaves(broker.says(200, {"publishers": []}))

        with pytest.raises(DataPlaneUnavailable, match="lacks the requested data"):
            plane.create_successors([self.left])

    def test_what_is_late_ends_with_the_call(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        broker.behaves(broker.is_silent())

        for call in (plane.terminate_segments, plane.subscriptions_of):
            with pytest.raises(DataPlaneTimeout, match=r"no answer within 0.4 s"):
                call([LOG, f"{LOG}1"])

    def test_a_missing_topic_is_left_out_and_another_error_is_not(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        gone = broker.says(404, {"reason": "Topic not found"})
        broker.behaves(gone)
        assert plane.terminate_segments([LOG]) == {}
        assert plane.subscriptions_of([LOG]) == {}

        broker.behaves(broker.says(403, {"reason": "no"}))
        with pytest.raises(Terminal):
            plane.terminate_segments([LOG])


class TestConnections:
    def test_a_connection_that_ends_without_a_word_is_tried_once_more(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        broker.behaves(broker.cuts(), broker.says(200, TERMINATED))

        assert plane.segment_state(LOG) is LogState.TERMINATED
        assert len(broker.received) == 2

    def test_and_then_it_is_away(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        broker.behaves(broker.cuts())

        with pytest.raises(DataPlaneUnavailable, match="is out of reach"):
            plane.segment_state(LOG)
        assert len(broker.received) == 2

    def test_half_an_answer_is_none(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        broker.behaves(broker.cuts_in_mid_answer())

        with pytest.raises(DataPlaneUnavailable, match=r"check the state before repeating|is out of reach"):
            plane.segment_state(LOG)

    def test_nothing_listens(self) -> None:
        plane = PulsarDataPlane(PulsarAccess(admin_url="http://127.0.0.1:9"), call_timeout_seconds=2.0)

        with pytest.raises(DataPlaneUnavailable, match=r"http://127.0.0.1:9 is out of reach \(.*refused"):
            plane.segment_state(LOG)
        plane.close()

    def test_another_broker_of_the_list_serves(self, broker: ScriptedBroker) -> None:
        broker.behaves(broker.says(200, TERMINATED))
        address = broker.url.removeprefix("http://")
        plane = PulsarDataPlane(
            PulsarAccess(admin_url=f"http://127.0.0.1:9,{address}"), call_timeout_seconds=2.0
        )

        assert [plane.segment_state(LOG) for _ in range(3)] == [LogState.TERMINATED] * 3
        plane.close()


class TestRedirects:
    def test_they_are_followed_with_method_body_and_token(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        with scripted_broker() as owner:
            broker.behaves(broker.says(307, Location=f"{owner.url}{PATH}/subscription/s"))
            owner.behaves(owner.says(204))

            plane.create_segment(LOG, ["s"])

            received = owner.received[-1]
        assert (received.method, received.path) == ("PUT", f"{PATH}/subscription/s")
        assert received.headers["Authorization"] == "Bearer hush"
        assert json.loads(received.body)["ledgerId"] == -1

    def test_in_a_circle_they_end(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        broker.behaves(broker.says(307, Location=f"{broker.url}{PATH}/internalStats"))

        with pytest.raises(DataPlaneUnavailable, match="in a loop"):
            plane.segment_state(LOG)
        assert len(broker.received) == 6

    def test_to_somewhere_that_is_no_broker_they_are_refused(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        broker.behaves(broker.says(307, Location="file:///etc/passwd"))

        with pytest.raises(DataPlaneUnavailable, match="file:///etc/passwd"):
            plane.segment_state(LOG)


class TestAnswers:
    def test_who_asks_too_often_is_told_when_to_come_again(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        broker.behaves(broker.refuses(429, "slow down", Retry_After="3"))

        with pytest.raises(Retryable) as raised:
            plane.terminate_segment(LOG)
        assert raised.value.delay_seconds == 3.0

    @pytest.mark.parametrize("status", [401, 403])
    def test_who_may_not_is_told_for_good_and_without_the_token(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, status: int
    ) -> None:
        broker.behaves(broker.refuses(status, "no"))

        with pytest.raises(Terminal) as raised:
            plane.terminate_segment(LOG)
        assert LOG in str(raised.value)
        assert "hush" not in str(raised.value)

    def test_a_page_that_is_no_brokers_does_not_make_logs_disappear(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        """A proxy's 404 taken for a broker's would have the reconciler make every segment anew."""
        broker.behaves(broker.says_text(404, "<html>Not Found</html>"))

        with pytest.raises(DataPlaneUnavailable, match="CLEAVE_PULSAR_ADMIN_URL"):
            plane.segment_state(LOG)
        with pytest.raises(DataPlaneUnavailable):
            plane.delete_segment(LOG)

    def test_a_page_that_is_no_brokers_does_not_make_logs_exist(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        for text in ("<html>Conflict</html>", "", "null", "{}", "[]"):
            broker.behaves(broker.says_text(409, text))
            with pytest.raises(
                DataPlaneUnavailable, match=f"create {LOG}: answer 409 .*CLEAVE_PULSAR_ADMIN_URL"
            ):
                plane.create_segment(LOG, [])

    @pytest.mark.parametrize("text", ["<html>welcome</html>", "", '{"other": 1}', "[]", "null"])
    def test_an_answer_that_says_nothing_of_it_is_none(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, text: str
    ) -> None:
        broker.behaves(broker.says_text(200, text))

        for act in (plane.segment_state, plane.terminate_segment, plane.list_subscriptions):
            with pytest.raises(DataPlaneUnavailable):
                act(LOG)

    @pytest.mark.parametrize("cursor", [{}, {"msgBacklog": None}, {"msgBacklog": "many"}])
    def test_a_subscription_whose_backlog_is_not_told_is_no_answer(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, cursor: dict[str, object]
    ) -> None:
        broker.behaves(broker.says(200, {"subscriptions": {"s": cursor}}))

        with pytest.raises(DataPlaneUnavailable, match="lacks the requested data"):
            plane.backlog(LOG, "s")
        with pytest.raises(DataPlaneUnavailable, match="lacks the requested data"):
            plane._cursors.unread_entries(LOG, "s", Deadline(1.0), is_terminated=True)

    @pytest.mark.parametrize(
        "document",
        [
            {},
            {"state": "Terminated"},
            {"state": "Terminated", "lastConfirmedEntry": None, "cursors": None, "ledgers": None},
            {
                "state": "Terminated",
                "lastConfirmedEntry": "5",
                "cursors": {"s": None},
                "subscriptions": {"s": None},
            },
            {"lastConfirmedEntry": "x:y", "cursors": ["s"], "subscriptions": ["s"], "ledgers": [{}]},
            {"ledgerId": "x", "entryId": None, "subscriptions": {"s": {"consumers": [None]}}},
            {"ledgerId": float("inf"), "entryId": 0, "subscriptions": {"s": {"msgBacklog": "many"}}},
        ],
    )
    def test_what_is_incomplete_is_an_error_that_passes_for_every_question_of_a_reader(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, document: dict[str, object]
    ) -> None:
        broker.behaves(broker.says(200, document))
        cursors, deadline = plane._cursors, Deadline(30.0)
        questions: tuple[Callable[[], object], ...] = (
            lambda: cursors.unread_entries(LOG, "s", deadline),
            lambda: cursors.end_of(LOG, deadline),
            lambda: cursors.place_before(LOG, 7, deadline),
            lambda: cursors.attachments(LOG, "s", deadline),
            lambda: cursors.cut_off(LOG, "s", deadline),
            lambda: cursors.is_contiguous(LOG, "s", deadline),
            lambda: cursors.has_more(LOG, (), deadline),
            lambda: cursors.demand_kept(LOG, (5, 8, 0), deadline),
            lambda: cursors.unread_messages(LOG, "s", 3, deadline),
            lambda: TopicEnd(cursors, LOG).place(deadline),
            lambda: TopicEnd(cursors, LOG).is_terminated(deadline, with_end=True),
            lambda: plane.gate_state(LOG, "s"),
            lambda: TopicEnd(cursors, LOG).stored_of(SentBatch("p", 0, 1), (5, 8), deadline),
        )
        for ask in questions:
            with pytest.raises(
                DataPlaneUnavailable, match=f"{LOG}: .*lacks the requested data .*; try again"
            ):
                ask()

    @pytest.mark.parametrize("analysis", [[], {"entries": 2}, {"entries": "x", "messages": 4}])
    def test_a_count_that_cannot_be_read_is_no_answer(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, analysis: object
    ) -> None:
        broker.behaves(
            broker.says(200, {"subscriptions": {"s": {"msgBacklog": 5}}}), broker.says(200, analysis)
        )

        with pytest.raises(DataPlaneUnavailable, match=f"backlog of 's' on {LOG}: .*lacks .*; try again"):
            plane.backlog(LOG, "s")

    @pytest.mark.parametrize(
        ("analysis", "backlog"),
        [
            pytest.param({"entries": 5, "messages": 9, "aborted": False}, 9, id="whole"),
            pytest.param(
                {"entries": 2, "messages": 4, "aborted": True}, 10, id="the mean stands for the rest"
            ),
            pytest.param({"entries": 0, "messages": 0, "aborted": True}, 15, id="counted here"),
        ],
    )
    def test_a_count_that_its_broker_ended_early_is_not_taken_for_nothing_to_read(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, analysis: dict[str, object], backlog: int
    ) -> None:
        cursor = {
            "markDeletePosition": "7:-1",
            "readPosition": "7:0",
            "individuallyDeletedMessages": "[]",
        }
        internal = {
            **INTERNAL,
            "lastConfirmedEntry": "7:4",
            "ledgers": [{"ledgerId": 7, "entries": 0}],
            "cursors": {"s": cursor},
        }
        broker.behaves(
            broker.says(200, {"subscriptions": {"s": {"msgBacklog": 5}}}),
            broker.says(200, analysis),
            broker.says(200, internal),
            broker.says(200, X_Pulsar_num_batch_message="3"),
        )

        assert plane.backlog(LOG, "s") == backlog

    def test_one_that_does_not_answer_is_silent_in_a_sample_and_all_of_them_are_an_error(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        counters = {"msgInCounter": 1, "bytesInCounter": 2, "msgOutCounter": 3, "bytesOutCounter": 4}
        broker.behaves(broker.refuses(500, "boom"), broker.says(200, counters))
        assert len(plane.sample([LOG, f"{LOG}0", f"{LOG}1"])) == 2

        broker.behaves(broker.says(200, {**counters, "publishers": [{}, {}]}), broker.says(200, counters))
        assert {one.producers for one in plane.sample([LOG, f"{LOG}0"]).values()} == {2, None}

        broker.behaves(broker.refuses(500, "boom"))
        with pytest.raises(DataPlaneUnavailable, match="boom"):
            plane.sample([LOG])

    @pytest.mark.parametrize("written", [None, "NaN", "x", [], float("inf")])
    def test_a_counter_that_is_no_number_silences_its_log_alone(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, written: object
    ) -> None:
        counters = {"msgInCounter": 1, "bytesInCounter": 2, "msgOutCounter": 3, "bytesOutCounter": 4}
        wrong = {**counters, "msgOutCounter": written}
        broker.behaves(broker.says(200, wrong), broker.says(200, counters))
        assert [one.msg_out for one in plane.sample([LOG, f"{LOG}0"]).values()] == [3]

        broker.behaves(broker.says(200, wrong))
        with pytest.raises(DataPlaneUnavailable, match="lacks the requested data"):
            plane.sample([LOG])


class TestPositions:
    """A topic whose last ledger was deleted, because the topic was idle."""

    def test_who_is_behind_the_last_entry_misses_nothing(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        trimmed = {**INTERNAL, "lastConfirmedEntry": "5:9", "ledgers": [{"ledgerId": 6, "entries": 0}]}
        broker.behaves(broker.says(200, trimmed))
        cursors, deadline = plane._cursors, Deadline(30.0)

        cursors.demand_kept(LOG, (5, 9, WHOLE_ENTRY), deadline)
        for missed in ((5, 8, WHOLE_ENTRY), (5, 9, 0)):  # a batch may have had more messages
            with pytest.raises(DataGone):
                cursors.demand_kept(LOG, missed, deadline)

        broker.behaves(broker.says(200, {**trimmed, **TERMINATED}), broker.refuses(404, "Ledger not found"))
        assert cursors.is_at_end(LOG, (5, 9, WHOLE_ENTRY), deadline)
        assert len(broker.received) == 4

    def test_a_sealed_log_without_entries_is_at_its_end_for_a_reader_that_has_read_nothing(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        empty = {**INTERNAL, "lastConfirmedEntry": "5:9", "ledgers": [{"ledgerId": 6, "entries": 0}]}
        broker.behaves(broker.says(200, {**empty, **TERMINATED}))
        cursors, deadline = plane._cursors, Deadline(30.0)

        assert cursors.is_at_end(LOG, (), deadline)
        with pytest.raises(DataGone):
            cursors.is_at_end(LOG, (5, 8, WHOLE_ENTRY), deadline)

        broker.behaves(broker.says(200, {**empty, **TERMINATED, "numberOfEntries": 1}))
        assert not cursors.is_at_end(LOG, (), deadline)

    @pytest.mark.parametrize(
        ("entries", "read", "has_more"),
        [
            (3, (), True),
            (3, (5, 8, WHOLE_ENTRY), True),
            (3, (5, 9, 0), False),
            (3, (6, 0, WHOLE_ENTRY), False),
            (0, (), False),
        ],
    )
    def test_more_is_stored_only_in_entries_behind_the_entry_that_was_read(
        self,
        broker: ScriptedBroker,
        plane: PulsarDataPlane,
        entries: int,
        read: tuple[int, ...],
        has_more: bool,
    ) -> None:
        broker.behaves(
            broker.says(200, {**INTERNAL, "lastConfirmedEntry": "5:9", "numberOfEntries": entries})
        )

        assert plane._cursors.has_more(LOG, read, Deadline(30.0)) is has_more

    def test_a_topic_that_is_open_is_never_at_its_end(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        broker.behaves(broker.says(200, {**INTERNAL, "lastConfirmedEntry": "5:9"}))

        for read in ((), (5, 9, WHOLE_ENTRY)):
            assert not plane._cursors.is_at_end(LOG, read, Deadline(30.0))

    @pytest.mark.parametrize(("read", "is_at_end"), [(1, False), (2, True)])
    def test_a_reader_in_the_last_entry_is_at_the_end_behind_the_last_of_its_messages(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, read: int, is_at_end: bool
    ) -> None:
        internal = {**INTERNAL, **TERMINATED, "lastConfirmedEntry": "5:9", "numberOfEntries": 10}
        broker.behaves(broker.says(200, internal), broker.says(200, X_Pulsar_num_batch_message="3"))

        assert plane._cursors.is_at_end(LOG, (5, 9, read), Deadline(30.0)) is is_at_end

    @pytest.mark.parametrize(
        ("read", "is_at_end"),
        [
            ((), False),
            ((5, 40, WHOLE_ENTRY), False),
            ((5, 98, WHOLE_ENTRY), False),
            ((5, 99, WHOLE_ENTRY), True),
            ((9, -1, WHOLE_ENTRY), True),
        ],
    )
    def test_a_topic_that_was_sealed_when_its_last_ledger_was_empty_ends_behind_the_entries_before_it(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, read: tuple[int, ...], *, is_at_end: bool
    ) -> None:
        """A broker begins a ledger when it loads a topic, and after some hours."""
        ledgers = [{"ledgerId": 5, "entries": 100}, {"ledgerId": 9, "entries": 0}]
        entries = {"lastConfirmedEntry": "9:-1", "numberOfEntries": 100, "ledgers": ledgers}
        broker.behaves(broker.says(200, {**INTERNAL, **TERMINATED, **entries}))

        assert plane._cursors.is_at_end(LOG, read, Deadline(30.0)) is is_at_end
        assert plane._cursors.has_more(LOG, read, Deadline(30.0)) is not is_at_end

    def test_a_topic_without_a_trace_of_an_entry_is_at_its_end(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        broker.behaves(broker.says(200, {**INTERNAL, **TERMINATED, "lastConfirmedEntry": "5:-1"}))

        for read in ((), (4, 8, WHOLE_ENTRY)):
            assert plane._cursors.is_at_end(LOG, read, Deadline(30.0))

    def test_no_subscription_of_a_topic_that_is_sealed_and_empty_is_moved(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        """Such a topic has one position, and a broker that has reloaded it would leave the subscription fenced."""
        cursors = {"s": {"markDeletePosition": "5:-1", "readPosition": "5:0"}}
        internal = {**INTERNAL, **TERMINATED, "lastConfirmedEntry": "5:-1", "cursors": cursors}
        broker.behaves(broker.says(200, internal))

        plane._cursors.move(LOG, "s", 0, Deadline(30.0))
        plane._cursors.make_durable(LOG, "s", Deadline(30.0))

        assert {received.method for received in broker.received} == {"GET"}

    @pytest.mark.parametrize(("version", "is_reloaded"), [("4.0.3", False), ("4.2.4", True)])
    def test_a_sealed_topic_is_reloaded_only_where_it_can_be_read_afterwards(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, version: str, *, is_reloaded: bool
    ) -> None:
        sealed = broker.says(200, {**INTERNAL, **TERMINATED})
        broker.behaves(sealed, broker.says_text(200, version), broker.says(204))

        assert plane._cursors.reload_if_terminated(LOG, Deadline(30.0)) is is_reloaded
        assert ("PUT" in {received.method for received in broker.received}) is is_reloaded


class TestRepeats:
    """An act whose answer was lost is done already when it is tried again."""

    def test_what_exists_is_created(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        broker.behaves(broker.refuses(409, "This topic already exists"))

        plane.create_segment(LOG, ["a", "b"])

        assert sorted(received.path.removeprefix(PATH) for received in broker.received) == [
            "",
            "/subscription/a",
            "/subscription/b",
        ]

    def test_what_is_gone_is_deleted(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        broker.behaves(broker.refuses(404, "Topic not found"))

        plane.delete_segment(LOG)
        plane.delete_subscription(LOG, "s")
        assert plane.segment_state(LOG) is LogState.MISSING

    def test_a_barrier_that_a_subscription_has_not_skipped_is_skipped_by_the_repeated_call(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        """No client acknowledges the barrier, so the subscription would never have read the log to its end."""

        def internal(mark: str) -> Behaviour:
            cursors = {"s": {"markDeletePosition": mark, "readPosition": "7:0"}}
            entry_7_0 = {"ledgers": [{"ledgerId": 7, "entries": 0}], "lastConfirmedEntry": "7:0"}
            return broker.says(200, {**INTERNAL, **entry_7_0, "cursors": cursors})

        stats = {"subscriptions": {"s": {"msgBacklog": 1}}}
        entry = broker.says(200, X_Pulsar_producer_name=BARRIER, X_Pulsar_Is_Encrypted="true")
        broker.behaves(
            *(broker.says(200, {"subscriptions": {}}), broker.says(204), broker.refuses(503, "busy"))
        )
        with pytest.raises(DataPlaneUnavailable):
            plane.create_subscription(LOG, "s")

        no_rate = broker.says(200)
        broker.behaves(
            *(broker.says(200, stats), internal("7:-1"), entry, no_rate),
            *(internal("7:-1"), broker.says(204), internal("7:0")),
        )
        plane.create_subscription(LOG, "s")

        [skip] = [received for received in broker.received if received.method == "POST"]
        assert skip.path == f"{PATH}/subscription/s/expireMessages"
        assert json.loads(skip.body) == {"ledgerId": 7, "entryId": 0, "partitionIndex": -1}

    def test_a_subscription_is_not_made_on_what_is_missing(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        """The broker would make the topic, too, where it makes topics on demand."""
        broker.behaves(broker.refuses(404, "Topic not found"))

        with pytest.raises(SegmentNotFound):
            plane.create_subscription(LOG, "s")
        assert {received.method for received in broker.received} == {"GET"}


class TestNewSubscriptions:
    @pytest.mark.parametrize(
        ("state", "entries", "ledger"),
        [("Terminated", 0, 2**63 - 1), ("Terminated", 1, -1), ("LedgerOpened", 0, -1)],
    )
    def test_they_begin_at_the_earliest_position_unless_the_topic_is_sealed_and_empty(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, state: str, entries: int, ledger: int
    ) -> None:
        """Some brokers never answer a request for the earliest position of a sealed topic without entries."""
        internal = {**INTERNAL, "state": state, "numberOfEntries": entries}

        def answer(conversation: Conversation) -> None:
            document = internal if "internalStats" in conversation.path else {"subscriptions": {}}
            broker.says(200, document)(conversation)

        broker.behaves(answer)
        plane.create_subscription(LOG, "s")

        [created] = [received for received in broker.received if received.method == "PUT"]
        assert created.path == f"{PATH}/subscription/s"
        assert json.loads(created.body)["ledgerId"] == ledger

    def test_one_that_exists_is_not_created(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        broker.behaves(broker.says(200, {"subscriptions": {"s": {}}}), broker.says(200, INTERNAL))

        plane.create_subscription(LOG, "s")

        assert {received.method for received in broker.received} == {"GET"}


class TestCredentials:
    def test_a_renewed_token_serves_without_a_restart(self, broker: ScriptedBroker, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("old\n")
        broker.behaves(broker.says(200, TERMINATED))
        plane = PulsarDataPlane(PulsarAccess(admin_url=broker.url, token_file=str(file)))

        plane.segment_state(LOG)
        file.write_text("new\n")
        plane.segment_state(LOG)

        assert [received.headers["Authorization"] for received in broker.received] == [
            "Bearer old",
            "Bearer new",
        ]
        file.unlink()
        with pytest.raises(InvalidInput, match="CLEAVE_PULSAR_TOKEN_FILE"):
            plane.segment_state(LOG)
        plane.close()


class TestNamespaces:
    """What is looked at where a token sees only a part."""

    def test_who_may_not_see_the_brokers_configuration_gets_pulsars_defaults(
        self, broker: ScriptedBroker
    ) -> None:
        policies = {"replication_clusters": ["one"], "deduplicationEnabled": True}
        broker.behaves(broker.says(200, policies), broker.refuses(403, "superusers only"))
        look = Namespaces(PulsarAccess(admin_url=broker.url))

        unmet = {one.demand.name for one in look.check("t/n")}

        assert {"topics on demand are off", "inactive topics are kept"} <= unmet
        assert "deduplication is on" not in unmet
        assert [received.path for received in broker.received][:2] == [
            "/admin/v2/namespaces/t/n",
            "/admin/v2/brokers/configuration/runtime",
        ]
        look.close()

    def test_what_the_brokers_do_by_themselves_need_not_be_set(self, broker: ScriptedBroker) -> None:
        runtime = {
            "allowAutoTopicCreation": "false",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "brokerDeduplicationEnabled": "true",
            "defaultRetentionTimeInMinutes": "60",
        }
        answers = broker.says(200, {}), broker.says(200, runtime), broker.says_text(200, "4.2.4")
        broker.behaves(*answers, broker.refuses(404, "Topic not found"))
        look = Namespaces(PulsarAccess(admin_url=broker.url))

        assert look.check("t/n", fix=True) == ()
        assert {received.method for received in broker.received} == {"GET"}
        look.close()

    def test_one_that_is_copied_to_other_clusters_is_refused(self, broker: ScriptedBroker) -> None:
        broker.behaves(broker.says(200, {"replication_clusters": ["one", "two"]}), broker.says(200, {}))
        look = Namespaces(PulsarAccess(admin_url=broker.url))

        [found] = [one for one in look.check("t/n") if one.demand.name == "one cluster only"]

        assert (found.demand.severity, found.demand.path) == (Severity.WRONG, None)
        look.close()

    @pytest.mark.parametrize(
        ("runtime", "is_said"),
        [
            ({"acknowledgmentAtBatchIndexLevelEnabled": "true"}, False),
            ({"acknowledgmentAtBatchIndexLevelEnabled": "false"}, True),
            (None, True),
        ],
        ids=["on", "off", "hidden"],
    )
    def test_whether_batches_are_acknowledged_in_part_is_said_unless_it_is_known(
        self, broker: ScriptedBroker, runtime: dict[str, str] | None, is_said: bool
    ) -> None:
        shown = broker.refuses(403, "superusers only") if runtime is None else broker.says(200, runtime)
        broker.behaves(broker.says(200, {}), shown)
        look = Namespaces(PulsarAccess(admin_url=broker.url))

        unmet = {one.demand.name for one in look.check("t/n")}

        assert ("batches are acknowledged in part" in unmet) is is_said
        look.close()

    @pytest.mark.parametrize(("version", "severity"), [("4.0.3", Severity.WRONG), ("4.0.4", None)])
    def test_brokers_that_could_not_read_a_sealed_segment_after_a_restart_are_wrong(
        self, broker: ScriptedBroker, version: str, severity: Severity | None
    ) -> None:
        answers = broker.says(200, {}), broker.says(200, {}), broker.says_text(200, version)
        broker.behaves(*answers, broker.refuses(404, "Topic not found"))
        look = Namespaces(PulsarAccess(admin_url=broker.url))

        unmet = {one.demand.name: one.demand.severity for one in look.check("t/n")}

        assert unmet.get("sealed segments can be read after a load") == severity
        look.close()
