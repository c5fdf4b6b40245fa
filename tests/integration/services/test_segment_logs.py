"""The log of a segment that a client opens by its descriptor."""

from __future__ import annotations

from controller.services import segment_logs
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench


def test_a_log_that_is_created_once_more_has_the_record_of_its_first_creation(bench: Bench) -> None:
    """Without the record it would be a foreign log, which is never deleted."""
    bench.topic_with()
    bench.reshape(splitting(0))
    log = bench.log_of(1)
    before = bench.plane.describe_logs([log])[log]
    bench.plane.delete_segment(log)

    segment_logs.find(bench.store, bench.planes, TOPIC, "0000-7fff-1").ensure_exists(["billing"])

    assert before.origin is not None
    assert bench.plane.describe_logs([log])[log].origin == before.origin
