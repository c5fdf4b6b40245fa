"""What closing a gate refuses, and what it leaves undone then. Gates on a real broker: `tests/integration/dataplane/test_pulsar_gates.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import pytest

from controller.dataplane.pulsar import gates as gates_module
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
from controller.dataplane.pulsar.barrier import Barrier
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.gates import SPARE_ENTRIES, Gates
from controller.domain.errors import CleaveError, DataGone, DataPlaneTimeout, SegmentNotFound, Unsupported
from controller.domain.gate_states import GateState

LOG = "persistent://acme/shop/orders-segment-0000-ffff-1"


class Broker:
    """One topic, as a broker's admin API tells of it."""

    call_timeout_seconds = 30.0

    def __init__(self) -> None:
        self.messages = 0
        """Messages of applications that are stored; none of them is a barrier."""
        self.rate: object = None
        self.has_policies = True
        self.applies_rates = True
        self.is_there = True
        self.subscriptions: dict[str, Any] = {}
        """Statistics of the topic's subscriptions, by name. All of them stand at the beginning."""
        self.read_position = "7:0"
        self.changes: list[str] = []
        """Last words of the paths of requests that change something."""

    def ask(self, ask: Ask, _deadline: Deadline) -> Answer:
        """As `AdminCalls.ask`."""
        if ask.method != "GET":
            self.changes.append(ask.path.rpartition("/")[2])
        if "dispatchRate" not in ask.path:
            return answer({"subscriptions": self.subscriptions})
        if not self.has_policies:
            return answer(None, status=405)
        if ask.method == "POST" and self.applies_rates:
            self.rate = ask.body
        if ask.method == "DELETE" and self.applies_rates:
            self.rate = None
        return answer(self.rate)

    def demand_all(self, asks: Sequence[Ask], _deadline: Deadline) -> list[Answer]:
        """As `AdminCalls.demand_all`, of stored messages."""
        return [answer("payload") for _ in asks]

    def internal(self, _backing_topic: str, _deadline: Deadline) -> dict[str, Any]:
        """As `Cursors.internal`."""
        if not self.is_there:
            raise SegmentNotFound("no topic")
        return {
            "ledgers": [{"ledgerId": 7, "entries": self.messages}],
            "lastConfirmedEntry": f"7:{self.messages - 1}",
            "numberOfEntries": self.messages,
            "cursors": {
                name: {"markDeletePosition": "7:-1", "readPosition": self.read_position}
                for name in self.subscriptions
            },
        }


def answer(document: object, *, status: int = 200) -> Answer:
    return Answer(status, document, "broker:8080", {})


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def gates(broker: Broker) -> Gates:
    """Gates at the broker."""
    access = PulsarAccess(admin_url="http://broker:8080", service_url="pulsar://broker:6650")
    return Gates(access, cast(AdminCalls, broker), cast(Cursors, broker))


@pytest.mark.parametrize(
    ("ability", "seconds", "error", "message"),
    [
        (
            "has_policies",
            30.0,
            Unsupported,
            r"topicLevelPoliciesEnabled=true and systemTopicEnabled=true",
        ),
        ("applies_rates", 0.0, DataPlaneTimeout, r"set the dispatch rate of 'stock'"),
    ],
    ids=["brokers without policies, whose settings are named", "a rate that is not applied in time"],
)
def test_where_the_dispatch_rate_is_not_set_nothing_is_closed(
    broker: Broker, gates: Gates, ability: str, seconds: float, error: type[CleaveError], message: str
) -> None:
    setattr(broker, ability, False)

    with pytest.raises(error, match=message):
        gates.close_gate(LOG, "stock", Deadline(seconds))

    assert broker.changes == ["dispatchRate"], "no cursor was made, whose messages nothing would hold back"


def test_a_gate_behind_a_message_is_refused_before_its_rate_is_set(broker: Broker, gates: Gates) -> None:
    """A rate would hold back the messages of a gate that nobody opens."""
    broker.messages = 1

    with pytest.raises(DataGone, match=r"begins with a message of an application"):
        gates.close_gate(LOG, "stock", Deadline(30.0))

    assert (broker.changes, broker.rate) == ([], None)


def test_a_message_that_comes_before_the_barrier_is_noticed(
    broker: Broker, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rate = broker.ask

    def ask(ask: Ask, deadline: Deadline) -> Answer:
        broker.messages = 1
        return set_rate(ask, deadline)

    monkeypatch.setattr(broker, "ask", ask)
    monkeypatch.setattr(
        gates_module, "append_barrier", lambda *_: pytest.fail("a barrier is of no use there")
    )
    monkeypatch.setattr(gates_module, "_create_connections", lambda *_: (None, None))

    with pytest.raises(DataGone, match=r"begins with a message of an application"):
        gates.close_gate(LOG, "stock", Deadline(30.0))


def test_a_message_that_overtakes_the_barrier_is_noticed(
    broker: Broker, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(*_: object) -> None:
        broker.messages = 1

    monkeypatch.setattr(gates_module, "append_barrier", append)
    monkeypatch.setattr(gates_module, "_create_connections", lambda *_: (None, None))

    with pytest.raises(DataGone, match=r"begins with a message of an application"):
        gates.close_gate(LOG, "stock", Deadline(30.0))


def test_a_missing_client_library_is_named(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "controller.dataplane.pulsar.binary", None)

    with pytest.raises(Unsupported, match="pip install pulsar-client"):
        gates.close_gate(LOG, "stock", Deadline(30.0))


def test_a_missing_log_has_no_gate(broker: Broker, gates: Gates) -> None:
    broker.is_there = False

    with pytest.raises(SegmentNotFound):
        gates.close_gate(LOG, "stock", Deadline(30.0))
    gates.open_gate(LOG, "stock", Deadline(30.0))
    assert gates.state(LOG, "stock", Deadline(30.0)) is None
    assert broker.changes == []


def test_a_broker_without_policies_has_every_gate_open(
    broker: Broker, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.has_policies = False
    seen = broker.internal(LOG, Deadline(30.0)) | {"cursors": {"stock": {"markDeletePosition": "7:-1"}}}
    monkeypatch.setattr(broker, "internal", lambda *_: seen)

    gates.open_gate(LOG, "stock", Deadline(30.0))
    assert gates.state(LOG, "stock", Deadline(30.0)) is GateState.OPEN


@pytest.mark.parametrize("consumers", [[{}], []])
@pytest.mark.parametrize("rate", [gates_module._RATE, None], ids=["closed", "opened before"])
def test_the_topic_of_a_gate_is_reloaded_once_its_rate_is_removed(
    broker: Broker, gates: Gates, consumers: list[Any], rate: object
) -> None:
    """The caller that removed the rate may have died before it reloaded the topic. A consumer that has just left may have a read due."""
    broker.rate, broker.subscriptions = rate, {"billing": {"consumers": consumers}}

    gates.open_gate(LOG, "billing", Deadline(1.0))

    assert broker.changes == ["dispatchRate", "unload"]


def test_the_topic_of_a_gate_is_not_reloaded_while_the_broker_applies_its_rate(
    broker: Broker, gates: Gates
) -> None:
    broker.rate, broker.subscriptions = gates_module._RATE, {"billing": {"consumers": [{}]}}
    broker.applies_rates = False

    with pytest.raises(DataPlaneTimeout, match="remove the dispatch rate"):
        gates.open_gate(LOG, "billing", Deadline(0.1))

    assert broker.changes == ["dispatchRate"]


def test_a_topic_without_the_subscription_is_not_reloaded(broker: Broker, gates: Gates) -> None:
    gates.open_gate(LOG, "billing", Deadline(1.0))

    assert broker.changes == ["dispatchRate"]


def test_a_topic_that_is_deleted_while_its_gate_is_opened_is_not_an_error(
    broker: Broker, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.rate, broker.subscriptions = gates_module._RATE, {"billing": {"consumers": [{}]}}
    present = broker.ask

    def ask(ask: Ask, deadline: Deadline) -> Answer:
        if "dispatchRate" not in broker.changes:
            return present(ask, deadline)
        broker.changes += [ask.method] if ask.method != "GET" else []
        if 404 not in ask.accept:
            raise SegmentNotFound(f"no topic {LOG}")
        return answer(None, status=404)

    monkeypatch.setattr(broker, "ask", ask)

    gates.open_gate(LOG, "billing", Deadline(1.0))

    assert broker.changes == ["dispatchRate", "PUT"]


@pytest.mark.parametrize(
    ("read_position", "consumers", "state"),
    [
        ("7:0", [{}], GateState.CLOSED),
        (f"7:{SPARE_ENTRIES}", [{}], GateState.CLOSED),
        (f"7:{SPARE_ENTRIES + 1}", [{}], GateState.SPENT),
        (f"7:{SPARE_ENTRIES + 1}", [], GateState.CLOSED),
    ],
)
def test_a_gate_is_spent_when_connected_consumers_were_sent_several_entries_of_its_barrier(
    broker: Broker,
    gates: Gates,
    monkeypatch: pytest.MonkeyPatch,
    read_position: str,
    consumers: list[dict[str, Any]],
    state: GateState,
) -> None:
    broker.rate, broker.messages, broker.read_position = gates_module._RATE, 8, read_position
    broker.subscriptions = {"billing": {"consumers": consumers}}
    monkeypatch.setattr(gates_module, "barrier_of", lambda *_: Barrier((7, 0), (7, 7), 8))

    assert gates.state(LOG, "billing", Deadline(1.0)) is state
