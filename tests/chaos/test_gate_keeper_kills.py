"""A gate keeper is killed before each request that it sends to a broker. The broker is killed at some of the requests,
too, with or without it.

The keeper opens a gate, or closes a spent gate again, while a standard consumer is connected. Whatever dies, no message passes a gate
whose parents are unread, and in the end the consumer is sent every message in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing

import pulsar
import pytest

from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.devstack.postgres import PostgresServer
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.domain.gate_states import GateState
from controller.services.segment_admin import merging
from tests.chaos import gated_scene
from tests.chaos.gated_scene import check_no_gate_is_early, keeper_of, open_gates
from tests.chaos.strikes import NewBench, start, where_of
from tests.chaos.test_gates import retry_for
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.benches import benches
from tests.support.gated import GatedScene, numbers, receive, received
from tests.support.gated_logs import GatedBench
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]
MESSAGES = 10
CHILD = 2
REMOVE_RATE, SET_RATE, RELOAD = "remove the dispatch rate", "set the dispatch rate", "reload"
RECOVERY_SECONDS = 120.0
Prepare = Callable[["Gated"], None]


class Gated:
    """A merged topic with unread parents. The child has messages behind a closed gate, and a standard consumer."""

    def __init__(self, bench: Bench) -> None:
        assert bench.pulsar is not None
        assert isinstance(bench.plane, PulsarDataPlane)
        self.bench = bench
        gated_scene.a_topic(2)(bench)
        bench.reshape(merging(0, 1))
        self.log = bench.log_of(CHILD)
        client = pulsar.Client(
            bench.pulsar.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        )
        self.scene = GatedScene(bench.pulsar, bench.plane, bench.logs, client)  # type: ignore[arg-type]
        self.consumer = self.scene.consumer(self.log, "billing")
        self.scene.send(self.log, MESSAGES)
        self.scene.spends_its_token(self.log, "billing")

    def close(self) -> None:
        """Close the consumer. The topic belongs to the bench."""
        self.scene.client.close()

    def read_parents(self) -> None:
        """Acknowledge all messages of the parents, so that the gate may be opened."""
        for segment_id in (0, 1):
            self.bench.plane.skip_all(self.bench.log_of(segment_id), "billing")

    def wear_down(self) -> None:
        """Change policies of the topic until the gate is spent."""
        self.scene.wear_down(self.log, "billing")

    @property
    def state(self) -> GateState | None:
        """The state of the child's gate at the broker."""
        return self.scene.plane.gate_state(self.log, "billing")

    def start_keeper(self, at: str, by: str) -> subprocess.Popen[str]:
        """Start a process with one round of a gate keeper, which strikes itself at a point."""
        return start("victim", at=at, by=by, keeps_gates=True, **where_of(self.bench))

    def check(self) -> None:
        """Let another keeper finish, and check that messages are delivered in order, and only when the parents are read."""
        if self.bench.plane.backlog(self.bench.log_of(0), "billing"):
            check_closed_again(self)
            self.read_parents()
        open_gates(self.bench)
        assert self.state is GateState.OPEN
        assert receive(self.consumer, MESSAGES) == numbers(MESSAGES)


def check_closed_again(gated: Gated) -> None:
    """Check that another keeper closes the gate again, and that no message passes."""
    assert gated.state in (GateState.CLOSED, GateState.SPENT)
    keeper_of(gated.bench).round()
    assert gated.state is GateState.CLOSED
    gated.scene.spends_its_token(gated.log, "billing")
    check_no_gate_is_early(gated.bench)
    assert received(gated.consumer) == []


PREPARATIONS = [
    pytest.param(Gated.read_parents, (REMOVE_RATE, RELOAD), GateState.OPEN, id="opening"),
    pytest.param(Gated.wear_down, (SET_RATE, RELOAD), GateState.CLOSED, id="spent"),
]


@pytest.mark.pulsar
@pytest.mark.parametrize(("prepare", "acts", "reached"), PREPARATIONS)
def test_a_keeper_killed_at_each_request_lets_nothing_pass_early_and_leaves_nothing_shut(
    prepare: Prepare,
    acts: tuple[str, str],
    reached: GateState,
    new_pulsar_bench: NewBench,
    record_figure: Callable[[str], None],
) -> None:
    """`acts` are requests of the keeper, in order. The keeper is killed before, between and after them, too, until a round ends with the
    gate in the state `reached`. On a busy machine a round may end early, because the broker answers too late.
    """
    killed_before: list[str] = []
    is_over = False
    while not is_over:
        with closing(Gated(new_pulsar_bench())) as gated:
            prepare(gated)
            victim = gated.start_keeper(f"request:{len(killed_before) + 1}", "SIGKILL")
            requests, _ = victim.communicate()
            assert victim.returncode in (0, -signal.SIGKILL)
            if victim.returncode:
                killed_before.append(requests.splitlines()[-1])
            else:
                is_over = gated.state is reached
            gated.check()
    first, second = (next(i for i, one in enumerate(killed_before) if one.startswith(act)) for act in acts)
    assert 0 < first < second, killed_before
    record_figure(f"gate keeper killed before each of {len(killed_before)} requests, {acts}: {killed_before}")


@pytest.mark.integration
@pytest.mark.parametrize("is_spent", [False, True], ids=["opening", "spent"])
def test_a_keeper_killed_at_each_call_of_the_data_plane_leaves_its_gates_to_another(
    new_gated_bench: Callable[[], GatedBench], *, is_spent: bool
) -> None:
    number, is_struck = 0, True
    while is_struck:
        number += 1
        bench = new_gated_bench()
        gated_scene.an_unread_split(bench)
        if is_spent:
            bench.gated.set_gate(bench.log_of(1), "billing", GateState.SPENT)
        else:
            bench.plane.skip_all(bench.log_of(0), "billing")
        victim = start("victim", at=f"call:{number}", by="SIGKILL", keeps_gates=True, **where_of(bench))
        victim.communicate()
        assert victim.returncode in (0, -signal.SIGKILL)
        is_struck = victim.returncode != 0
        bench.keep()
        if is_spent:
            assert {*bench.gated.gates.values()} == {GateState.CLOSED}
            check_no_gate_is_early(bench)
        gated_scene.read_and_open(bench)
    assert number > 3


@pytest.fixture
def new_killable_bench(
    killable_broker: PulsarStandalone, postgres_server: PostgresServer, migrated_template: str
) -> Iterator[NewBench]:
    """Factory of benches on a broker that the test may kill."""

    def build(url: str) -> Bench:
        return Bench(url, PulsarTopic.fresh(killable_broker.admin_url, killable_broker.service_url, "gates"))

    yield from benches(postgres_server, migrated_template, build)


@pytest.mark.pulsar
@pytest.mark.parametrize("is_keeper_killed", [False, True], ids=["broker", "both"])
@pytest.mark.parametrize(
    ("prepare", "at"),
    [
        pytest.param(prepare, at, id=f"{name}-{at.replace(' ', '-')}")
        for name, prepare, points in (
            ("opening", Gated.read_parents, ("drain:before", "ready:after", f"request:{REMOVE_RATE}",
                                             f"request:{RELOAD}", "open:before", "open:after")),
            ("spent", Gated.wear_down, (f"request:{SET_RATE}", f"request:{RELOAD}")),
        )
        for at in points
    ],
)  # fmt: skip
def test_a_broker_killed_at_a_request_lets_nothing_pass_early_and_leaves_nothing_shut(
    prepare: Prepare,
    at: str,
    new_killable_bench: NewBench,
    killable_broker: PulsarStandalone,
    *,
    is_keeper_killed: bool,
) -> None:
    with closing(Gated(new_killable_bench())) as gated:
        prepare(gated)
        victim = gated.start_keeper(at, "SIGSTOP")
        try:
            stopped = os.waitid(os.P_PID, victim.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert stopped is not None
            assert stopped.si_code == os.CLD_STOPPED
            killable_broker.kill()
            victim.send_signal(signal.SIGKILL if is_keeper_killed else signal.SIGCONT)
            victim.communicate()
            assert victim.returncode == (-signal.SIGKILL if is_keeper_killed else 0)
        finally:
            victim.kill()
            killable_broker.start()
        wait_until(
            retry_for(lambda: gated.scene.dispatched(gated.log, "billing") > 0),
            timeout_seconds=RECOVERY_SECONDS,
            message="the consumer is connected again",
        )
        gated.check()
