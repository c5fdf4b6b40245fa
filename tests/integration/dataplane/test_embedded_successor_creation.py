"""The creation of successors on embedded logs: the order of the locks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from controller.dataplane.base import Successor
from controller.dataplane.embedded import EmbeddedDataPlane
from tests.support.planes import Planes
from tests.support.rolled_back_session import rolled_back_session
from tests.support.store_driver import SOMEBODY_WAITS
from tests.support.waiting import wait_until


def test_logs_are_locked_in_the_order_of_their_names_before_any_cursor(database: str, planes: Planes) -> None:
    patient = EmbeddedDataPlane(database, call_timeout_seconds=20.0)
    topic = planes.topic()
    late, early = (planes.log(topic=topic, descriptor=f"0000-ffff-{number}") for number in (2, 1))

    with (
        ThreadPoolExecutor(1) as pool,
        rolled_back_session(database) as somebody,
        rolled_back_session(database) as other,
    ):
        somebody.execute("SELECT FROM embedded.log WHERE name = %s FOR UPDATE", [early])
        wanted = [Successor(name, (), ("s",)) for name in (late, early)]
        creating = pool.submit(patient.create_successors, wanted)

        def waits() -> bool:
            other.connection.rollback()  # within a transaction the answer never changes
            other.execute(SOMEBODY_WAITS)
            return bool(other.fetchall())

        wait_until(waits, message="the call waits for the log that is held")
        other.execute("SELECT log_id FROM embedded.log WHERE name = %s FOR UPDATE NOWAIT", [late])
        assert len(other.fetchall()) == 1
        other.connection.rollback()
        somebody.connection.rollback()
        assert set(creating.result()) == {late, early}
    patient.close()
