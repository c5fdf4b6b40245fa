"""What a log and its clients know after the broker's death by SIGKILL: what was read, and what was stored.

One log, no operation: the places where a crash could take back something that Cleave has already built on.
"""

from __future__ import annotations

import threading

import pytest

from controller.dataplane.base import LogState
from controller.dataplane.log_client import OutgoingMessage
from controller.dataplane.pulsar import batch_sender
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.domain.errors import DataPlaneUnavailable, SegmentTerminated
from tests.support.bench_planes import PulsarTopic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.chaos, pytest.mark.timeout(900)]


def test_what_was_drained_stays_read_to_its_end_when_the_broker_dies(
    killable_broker: PulsarStandalone,
) -> None:
    """A broker writes a cursor down once a second at most, and the last position up to a minute later: a crash would
    bring back messages of a log whose drain is recorded, which nobody would read again.
    """
    here = PulsarTopic.fresh(killable_broker.admin_url, killable_broker.service_url, "outages")
    plane, logs = PulsarDataPlane(here.access), PulsarLogClient(here.access)
    log = plane.backing_topic(here.topic, "0000-ffff-0")
    plane.create_segment(log, ["billing"])
    reader = logs.open_reader(log, "billing", owner="c", live_owners=(), on_arrival=lambda: None)
    for number in range(1, 6):  # acknowledged one by one, faster than they are written down
        assert logs.append(log, [OutgoingMessage(b"m")], producer="p", sequence=number) == 1
        [message] = wait_until(lambda: reader.read(1))
        reader.acknowledge(message.position)
        wait_until(lambda: plane.backlog(log, "billing") == 0)
    plane.terminate_segment(log)
    wait_until(reader.is_drained)
    reader.close()
    logs.close()

    killable_broker.kill()
    killable_broker.start()

    assert plane.segment_state(log) is LogState.TERMINATED
    assert plane.backlog(log, "billing") == 0
    plane.close()


def test_a_batch_that_a_dying_broker_stored_is_known_behind_the_fence(
    killable_broker: PulsarStandalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost with the broker, and the fence fell before the producer was back: sent to a successor as
    well, it would be there twice.
    """
    here = PulsarTopic.fresh(killable_broker.admin_url, killable_broker.service_url, "outages")
    plane, logs = PulsarDataPlane(here.access), PulsarLogClient(here.access, call_timeout_seconds=20.0)
    log = plane.backing_topic(here.topic, "0000-ffff-0")
    plane.create_segment(log, ["billing"])
    batch = [OutgoingMessage(b"1"), OutgoingMessage(b"2")]
    logs.append(log, batch, producer="p", sequence=1)
    monkeypatch.setattr(batch_sender._Results, "__call__", lambda *_: None)  # the answers never arrive

    def kill_when_stored() -> None:
        wait_until(lambda: (plane.backlog(log, "billing") or 0) >= 2 * len(batch))
        killable_broker.kill()

    dying = threading.Thread(target=kill_when_stored)
    dying.start()
    with pytest.raises(DataPlaneUnavailable):
        logs.append(log, batch, producer="p", sequence=2)
    dying.join()
    monkeypatch.undo()
    killable_broker.start()
    plane.terminate_segment(log)

    assert logs.append(log, batch, producer="p", sequence=2) == 2
    with pytest.raises(SegmentTerminated):
        logs.append(log, batch, producer="p", sequence=3)
    logs.close()
    plane.close()
