"""Which commits on embedded logs wait for the disk."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import psycopg2.extensions
import pytest

from controller.dataplane.base import Successor
from controller.dataplane.embedded import EmbeddedDataPlane, set_wise, successor_creation
from tests.support.planes import Planes
from tests.support.rolled_back_session import rolled_back_session

Act = Callable[[psycopg2.extensions.cursor, str, bool], object]


def create(cursor: psycopg2.extensions.cursor, log: str, waits: bool) -> object:
    return successor_creation.create_successors(cursor, [Successor(log, (), ("s",))], waits_for_disk=waits)


def terminate(cursor: psycopg2.extensions.cursor, log: str, waits: bool) -> object:
    return set_wise.terminate(cursor, [log], waits_for_disk=waits)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("act", [create, terminate])
def test_an_act_waits_for_the_disk_as_it_is_told_to(
    database: str,
    planes: Planes,
    act: Act,
    waits: bool,
) -> None:
    log = planes.log()

    with rolled_back_session(database) as cursor:
        cursor.execute("SET LOCAL synchronous_commit = 'on'")
        assert act(cursor, log, waits)
        cursor.execute("SHOW synchronous_commit")

        assert cursor.fetchone() == ("on" if waits else "off",)


@pytest.mark.parametrize("shares_server", [True, False])
def test_a_plane_waits_for_the_disk_unless_it_shares_the_journals_server(
    database: str,
    planes: Planes,
    monkeypatch: pytest.MonkeyPatch,
    shares_server: bool,
) -> None:
    """What the journal is told of it must not outlive it."""
    log, told = planes.log(), dict[str, bool]()

    def noting(module: ModuleType, name: str) -> Callable[..., Any]:
        real = getattr(module, name)

        def act(*arguments: Any, waits_for_disk: bool) -> Any:
            told[name] = waits_for_disk
            return real(*arguments, waits_for_disk=waits_for_disk)

        return act

    for module, name in ((successor_creation, "create_successors"), (set_wise, "terminate")):
        monkeypatch.setattr(module, name, noting(module, name))
    plane = EmbeddedDataPlane(database, call_timeout_seconds=5.0, shares_journal_server=shares_server)
    plane.create_successors([Successor(log, (), ("s",))])
    plane.terminate_segments([log])
    plane.close()

    assert told == {"create_successors": not shares_server, "terminate": not shares_server}
