"""The outages of a database under traffic, by name: what befalls the servers, and what is requested meanwhile.

Each is run by `play`, on a cluster that is completed with the standby the scenario needs. Tests assert on the outcomes,
the benchmark writes them down. To run them::

    python -m pytest -n 1 tests/integration/outages                              # the short ones, as `make test` does
    python -m pytest -n 1 tests/integration/outages -k "frozen"                  # one of them
    python -m pytest tests/integration/outages -m chaos                          # a dump, a split that is prepared
    python -m pytest tests/chaos/test_outages_of_a_pair.py -m chaos              # many fail-overs; two workers, two hosts
    python -m benchmarks.bench_outages --rounds 1 --scenarios "restore" --planes embedded   # figures, as one line of JSON

A scene that breaks a law prints every figure of both planes, what the maintenance found, and the workers' last warnings.
Without Maven the tests play on the embedded logs alone; without libfaketime those with a shifted clock are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from controller.devstack.postgres import EmbeddedPostgres
from controller.domain.operation import OperationState
from controller.services.segment_admin import merging, splitting
from tests.support.bench_planes import PulsarTopic
from tests.support.outage_outcome import Outcome
from tests.support.outage_scene import OutageScene
from tests.support.replicated_postgres import FAKETIME, Address, ReplicatedPostgres, execute

CLOCK_BEHIND_SECONDS = 300
_PASS_DEADLINES = """
    UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1
     WHERE state NOT IN ('done', 'aborted')
"""


@dataclass(frozen=True, slots=True)
class Scenario:
    """An outage; `act` performs it on a scene that has begun. The standby exists before, if the scenario has one."""

    act: Callable[[OutageScene], None]
    standby: bool = True
    synchronous: bool = True
    clock_behind_seconds: int = 0
    reorders_embedded: bool = False
    """Whether a producer may append to a child of the lost time and then to the restored parent of the child."""

    @property
    def may_repeat(self) -> bool:
        """True if consumers' acknowledgements may be lost with a server, so that messages are delivered again."""
        return not (self.standby and self.synchronous)

    def broken_laws(self, outcomes: Mapping[str, Outcome]) -> str:
        """Return the laws that did not hold on any plane, with all figures. Empty if all held."""
        broken = [
            law
            for plane, outcome in outcomes.items()
            for law in outcome.broken_laws(
                duplicates=self.may_repeat, disorder=self.reorders_embedded and plane == "embedded"
            )
        ]
        return "\n".join([*broken, *map(str, outcomes.values())]) if broken else ""

    @property
    def missing(self) -> str:
        """Return what this machine lacks for the scenario. Empty if it can run."""
        if self.clock_behind_seconds and not FAKETIME.exists():
            return f"no {FAKETIME.name} here; install Debian's package faketime"
        return ""


def play(
    scenario: Scenario,
    cluster: ReplicatedPostgres,
    directory: Path,
    topics: Sequence[PulsarTopic | None],
    *,
    address: Address = Address.PROXY,
    workers: int = 1,
    running: ExitStack | None = None,
) -> dict[str, Outcome]:
    """Run the scenario to its end, and return the outcomes by plane."""
    with running or ExitStack() as resources:
        scene = OutageScene(cluster, directory, resources, topics=topics, address=address, workers=workers)
        if scenario.standby:
            cluster.add_standby(
                synchronous=scenario.synchronous, clock_behind_seconds=scenario.clock_behind_seconds
            )
        scene.begin()
        scenario.act(scene)
        return scene.judge()


def _go_on(scene: OutageScene) -> None:
    """Demand that all clients continue, and run maintenance under traffic."""
    scene.demand_resumed()
    scene.maintain()


def fail_over(scene: OutageScene) -> None:
    """Kill the primary while a range is closed for a split, and promote the standby."""
    scene.reshape(splitting(0))
    scene.fence(splitting(1))
    with scene.outage():
        scene.cluster.kill_primary()
        scene.cluster.promote()
    _go_on(scene)


def lose_last_split(scene: OutageScene) -> None:
    """Cut the replication link, split and produce into the children, and only then kill the primary and promote."""
    scene.reshape(splitting(0))
    scene.lose_from_now()
    scene.cluster.cut_replication()
    scene.reshape(splitting(1))
    scene.advance()
    with scene.outage():
        scene.cluster.kill_primary()
        scene.cluster.promote()
    _go_on(scene)


def freeze(scene: OutageScene) -> None:
    """Freeze the primary's processes and promote the standby.

    The frozen processes stay until the scene ends, or until a client did not continue in time.
    """
    scene.reshape(splitting(0))
    with scene.outage():
        scene.cluster.freeze_primary()
        scene.cluster.promote()
    _go_on(scene)


def freeze_and_thaw(scene: OutageScene) -> None:
    """Freeze and promote as `freeze` does; then resume the old primary, whose connections are still open, while the new one serves."""
    scene.reshape(splitting(0))
    with scene.outage():
        scene.cluster.freeze_primary()
        scene.cluster.promote()
    scene.demand_resumed()
    scene.cluster.thaw()
    scene.reshape(splitting(1))
    scene.advance()
    scene.maintain()


def restore(
    scene: OutageScene, *, under_way: OperationState | None = None, new_timeline: bool = True
) -> None:
    """Back up, split and merge further, and restore the backup. `under_way`: state of a split that the backup contains."""
    scene.reshape(splitting(1))
    with scene.workers_paused():
        if under_way is not None:
            for topic in scene.topics:
                topic.leave_in(under_way, splitting(0))
        scene.lose_from_now()
        backup = scene.cluster.back_up()
    if under_way is None:
        scene.reshape(splitting(0))
    scene.wait_quiet()
    scene.reshape(merging(2, 3))
    scene.reshape(splitting(4))
    scene.advance()
    with scene.outage():
        scene.cluster.kill_primary()
        scene.cluster.restore(
            backup,
            new_timeline=new_timeline,
            before_service=lambda server: _pass_deadlines(server, scene.database),
        )
    _maintain_and_split(scene)


def restore_dump(scene: OutageScene) -> None:
    """Dump the database, split and merge further, and replace the database by the dump on the same server."""
    scene.reshape(splitting(1))
    scene.lose_from_now()
    dump = scene.cluster.dump(scene.database)
    scene.reshape(splitting(0))
    scene.reshape(merging(2, 3))
    scene.advance()
    with scene.outage():
        scene.cluster.restore_dump(scene.database, dump)
    _maintain_and_split(scene)


def _maintain_and_split(scene: OutageScene) -> None:
    """Wait until every client continues, run the maintenance before and after a split, and wait for the clients again."""
    scene.wait_resumed(limit_seconds=20.0, reshapes=False)
    scene.maintain()
    scene.reshape(splitting(0))
    scene.maintain()
    scene.wait_resumed(limit_seconds=20.0)


def _pass_deadlines(server: EmbeddedPostgres, database: str) -> None:
    execute(server, _PASS_DEADLINES, database)


SCENARIOS: dict[str, Scenario] = {
    "synchronous fail-over": Scenario(fail_over),
    "asynchronous fail-over": Scenario(lose_last_split, synchronous=False),
    "restore": Scenario(restore, standby=False),
    "restore, split intended": Scenario(
        lambda scene: restore(scene, under_way=OperationState.INTENDED, new_timeline=False), standby=False
    ),
    "restore, split prepared": Scenario(
        lambda scene: restore(scene, under_way=OperationState.PREPARED),
        standby=False,
        reorders_embedded=True,
    ),
    "restore of a dump": Scenario(restore_dump, standby=False),
    "frozen primary": Scenario(freeze),
    "frozen primary that wakes up": Scenario(freeze_and_thaw),
    "clock 300 s behind": Scenario(fail_over, clock_behind_seconds=CLOCK_BEHIND_SECONDS),
}
