"""Situations for tests: one built from a few figures, and any that could come about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from controller.domain.evaluation_input import Capabilities, EvaluationInput, History, LiveReshape
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import ReshapeKind
from tests.unit.domain.strategies import layouts

NOW = 10_000_000
LONG_AGO = NOW - 3_600_000
SHARED = Capabilities(shared_buckets=True)

# Small figures, so that drawn rates fall on, below and above every threshold.
SMALL = AutoScalePolicy(
    split_vs_rebucket_min_msg_rate_in=4.0,
    split_msg_rate_in=10.0,
    split_byte_rate_in=20.0,
    split_msg_rate_out=10.0,
    split_byte_rate_out=20.0,
    merge_msg_rate_in=4.0,
    merge_byte_rate_in=15.0,
    merge_msg_rate_out=4.0,
    merge_byte_rate_out=15.0,
)


def record(
    stats: float | LoadStats,
    policy: AutoScalePolicy | None = None,
    *,
    since: int = LONG_AGO,
    observed_at: int = NOW,
) -> LoadRecord:
    """A record written at ``since``; a plain number is a rate of messages in."""
    stats = stats if isinstance(stats, LoadStats) else LoadStats(float(stats))
    is_cold = (policy or AutoScalePolicy()).thresholds.is_cold(stats)
    return LoadRecord(stats, since, since if is_cold else None, observed_at)


def topic(
    *loads: float | LoadStats | LoadRecord | None,
    layout: SegmentLayout | None = None,
    buckets: int = 1,
    consumers: int | Mapping[str, int] = 0,
    policy: AutoScalePolicy | None = None,
    capabilities: Capabilities | None = None,
    history: History | None = None,
    in_flight: tuple[LiveReshape, ...] = (),
    consumers_changed_at: int | None = None,
    now: int = NOW,
) -> EvaluationInput:
    """A topic of as many segments as loads, in range order; None is a segment nobody has reported."""
    policy = policy or AutoScalePolicy()
    layout = layout or SegmentLayout.initial(len(loads), bucket_budget=buckets * len(loads), now=0)
    records = {
        segment.segment_id: load if isinstance(load, LoadRecord) else record(load, policy)
        for segment, load in zip(layout.active, loads, strict=True)
        if load is not None
    }
    return EvaluationInput(
        layout=layout,
        loads=records,
        stream_consumers=consumers if isinstance(consumers, Mapping) else {"orders": consumers},
        policy=policy,
        capabilities=capabilities or Capabilities(),
        history=history or History(),
        in_flight=in_flight,
        consumers_changed_at=consumers_changed_at,
        now=now,
    )


def ago(seconds: float) -> int:
    return NOW - int(seconds * 1000)


instants = st.integers(0, 700).map(ago) | st.integers(-5, 700_000).map(lambda ms: NOW - ms)
maybe_instants = st.none() | instants
_keeps = st.tuples(st.just(ago(60)), st.sampled_from([ago(30), NOW, NOW + 1, ago(-30), ago(-7_200)]))
_consumers = st.integers(0, 3) | st.integers(0, 24)
_rates = st.sampled_from([0.0, 0.5, 1.0, 3.5, 4.0, 9.0, 10.0, 10.5, 14.0, 20.0, 25.0]) | st.floats(0, 30)


@st.composite
def records(draw: st.DrawFn) -> LoadRecord:
    """Cold more often than chance would have it."""
    scale = draw(st.sampled_from([0.05, 0.1, 0.2, 1.0]))
    stats = LoadStats(*(draw(_rates) * scale for _ in range(4)))
    old = draw(instants)
    fresh = NOW - draw(st.sampled_from([0, 0, 1_000, 299_999, 300_000, 300_001, 400_000]))
    return LoadRecord(stats, old, draw(st.just(old) | maybe_instants), fresh)


@st.composite
def policies(draw: st.DrawFn, *, strict: bool | None = None) -> AutoScalePolicy:
    """Valid ones, with small caps and short cooldowns."""
    least = draw(st.integers(1, 4))
    merge = draw(st.sampled_from([0.0, 4.0, 9.0]))
    return replace(
        SMALL,
        min_segments=least,
        max_segments=least + draw(st.integers(0, 20)),
        max_dag_depth=draw(st.integers(0, 5)),
        split_cooldown_seconds=draw(st.sampled_from([0, 60])),
        rebucket_cooldown_seconds=draw(st.sampled_from([0, 60])),
        merge_cooldown_seconds=draw(st.sampled_from([0, 300])),
        merge_window_seconds=draw(st.sampled_from([0, 300])),
        split_vs_rebucket_min_msg_rate_in=draw(st.sampled_from([0.0, 1.0, 4.0])),
        entry_bucket_max_per_segment=draw(st.sampled_from([1, 3, 8, 1024])),
        merge_msg_rate_in=merge,
        strict_pulsar=draw(st.booleans()) if strict is None else strict,
    )


@st.composite
def _in_flight(draw: st.DrawFn, layout: SegmentLayout) -> tuple[LiveReshape, ...]:
    """Live reshapes over disjoint neighbours, and sometimes one whose children are in the layout already."""
    reshapes = []
    rest = [segment.segment_id for segment in layout.active]
    for operation_id in range(1, draw(st.integers(0, 3)) + 1):
        kind = draw(st.sampled_from(ReshapeKind))
        parents = {ReshapeKind.MERGE: 2, ReshapeKind.RECUT: 3}.get(kind, 1)
        children = {ReshapeKind.SPLIT: 2, ReshapeKind.RECUT: draw(st.integers(1, 5))}.get(kind, 1)
        if len(rest) >= parents:
            reshapes.append(LiveReshape(operation_id, kind, tuple(rest[:parents]), children, draw(instants)))
            rest = rest[parents + draw(st.integers(0, 2)) :]
    sealed = [i for i, segment in layout.segments.items() if not segment.is_active]
    one_is_done = draw(st.booleans())
    if sealed and one_is_done:
        done = (draw(st.sampled_from(sealed)),)
        reshapes.append(LiveReshape(9, ReshapeKind.SPLIT, done, 2, draw(instants)))
    return tuple(reshapes)


@st.composite
def situations(draw: st.DrawFn, *, strict: bool | None = None, busy: bool = True) -> EvaluationInput:
    """Any life of a topic, any load, any consumers; rates lie around the thresholds of ``SMALL``."""
    layout = draw(layouts(max_changes=8))
    loads = {s.segment_id: draw(records()) for s in layout.active if draw(st.integers(0, 9)) > 0}
    kept = (
        {} if strict else {s.segment_id: draw(_keeps) for s in layout.active if draw(st.integers(0, 4)) > 3}
    )
    return EvaluationInput(
        layout=layout,
        loads=loads,
        stream_consumers=draw(st.dictionaries(st.sampled_from("abc"), _consumers, max_size=3)),
        policy=draw(policies(strict=strict)),
        history=History(draw(maybe_instants), draw(maybe_instants), draw(maybe_instants)),
        in_flight=draw(_in_flight(layout)) if busy else (),
        capabilities=draw(st.sampled_from([Capabilities(), SHARED])),
        consumers_changed_at=draw(st.none() | st.sampled_from([LONG_AGO, NOW])),
        kept=kept,
        now=NOW,
    )


@st.composite
def calm_situations(draw: st.DrawFn, *, strict: bool = False) -> EvaluationInput:
    """Fresh readings, long unchanged and mostly low, nothing under way: merges are likely."""
    layout = draw(layouts(max_changes=8))
    if len(layout.active) == 1:
        layout = SegmentLayout.initial(draw(st.integers(2, 6)), now=0)
    merge_at = draw(st.sampled_from([4.0, 9.0]))
    policy = replace(SMALL, merge_msg_rate_in=merge_at, merge_msg_rate_out=9.0, max_dag_depth=50)
    stats = st.builds(LoadStats, *(st.floats(0, limit) for limit in (merge_at, 15, 9, 15)))
    size = len(layout.active)
    return topic(
        *(draw(stats) for _ in layout.active),
        layout=layout,
        consumers=draw(st.integers(0, size - 1) | st.integers(0, 2 * size)),
        policy=replace(policy, max_segments=size + draw(st.integers(0, 3)), strict_pulsar=strict),
        capabilities=draw(st.sampled_from([Capabilities(), SHARED])),
    )
