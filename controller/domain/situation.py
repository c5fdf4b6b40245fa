"""Situation: everything one decision may look at, as one value with a canonical text.

The ledger stores the text beside the code version, so any decision can be replayed: the situation read back gives the
identical evaluation. Its parts are gathered by the callers: the autoscaler, a replay, a test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from controller.domain.entry_buckets import equal_splits
from controller.domain.hash_range import HashRange
from controller.domain.knobs import write_knob
from controller.domain.layout import SegmentLayout
from controller.domain.load import METRICS, LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment, SegmentState


@dataclass(frozen=True, slots=True)
class History:
    """When the last act of each kind started, milliseconds since the Unix epoch; None: never."""

    last_split_at: int | None = None
    last_merge_at: int | None = None
    last_rebucket_at: int | None = None


@dataclass(frozen=True, slots=True)
class LiveReshape:
    """A reshape under way: its parents are busy, its children count, its start counts for cooldowns."""

    operation_id: int
    kind: ReshapeKind
    parent_ids: tuple[int, ...]
    child_count: int
    started_at: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the data plane can do. Without `shared_buckets` a consumer needs a segment of its own."""

    midpoint_only: bool = False
    max_children: int = 2
    recut: bool = False
    shared_buckets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One topic at `now` (milliseconds since the Unix epoch); never changed, never checked.

    `loads` and `recent_loads` (newest last) are keyed by segment id, `stream_consumers` maps each
    controller-managed subscription to its registered consumers. `policy` is resolved.
    `foreign_controller`: the broker's own auto-scaler acts on the topic too, so nothing may be decided.
    """

    layout: SegmentLayout
    loads: Mapping[int, LoadRecord]
    recent_loads: Mapping[int, tuple[LoadStats, ...]] = field(default_factory=dict)
    stream_consumers: Mapping[str, int] = field(default_factory=dict)
    policy: AutoScalePolicy
    history: History = History()
    in_flight: tuple[LiveReshape, ...] = ()
    capabilities: Capabilities = Capabilities()
    foreign_controller: bool = False
    now: int

    def to_json(self) -> str:
        """Canonical text: sorted keys, no spaces, integral numbers as integers.

        Holds what a decision reads and no more: the active segments (under `strict_pulsar` their
        ancestors too, whose merges Pulsar counts), and load of active segments only.
        """
        active = self.layout.active
        loads = {s.segment_id: self.loads[s.segment_id] for s in active if s.segment_id in self.loads}
        recent = {
            s.segment_id: self.recent_loads[s.segment_id] for s in active if s.segment_id in self.recent_loads
        }
        document = {
            "epoch": self.layout.epoch,
            "next_segment_id": self.layout.next_segment_id,
            "segments": [_write_segment(segment) for segment in active],
            "ancestors": [[s.segment_id, list(s.parent_ids)] for s in self._ancestors()],
            "loads": {str(segment_id): _write_load(record) for segment_id, record in loads.items()},
            "recent_loads": {
                str(segment_id): [_write_stats(s) for s in ticks] for segment_id, ticks in recent.items()
            },
            "stream_consumers": dict(self.stream_consumers),
            "policy": self.policy.to_document(),
            "history": _write_flat(self.history),
            "in_flight": [
                _write_flat(reshape) for reshape in sorted(self.in_flight, key=lambda live: live.operation_id)
            ],
            "capabilities": _write_flat(self.capabilities),
            "now": self.now,
        }
        if self.foreign_controller:
            document["foreign_controller"] = True
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads `to_json`'s text; the situation it gives is decided on identically.

        Bucket boundaries come back as equal widths (their number is what decides) and sealed segments
        that no decision reads are gone.
        """
        document = json.loads(text)
        return cls(
            layout=_read_layout(document),
            loads={int(key): _read_load(value) for key, value in document["loads"].items()},
            recent_loads={
                int(key): tuple(_read_stats(rates) for rates in ticks)
                for key, ticks in document["recent_loads"].items()
            },
            stream_consumers=document["stream_consumers"],
            policy=AutoScalePolicy.from_document(document["policy"]),
            history=History(**document["history"]),
            in_flight=tuple(_read_reshape(value) for value in document["in_flight"]),
            capabilities=Capabilities(**document["capabilities"]),
            foreign_controller=document.get("foreign_controller", False),
            now=document["now"],
        )

    def _ancestors(self) -> Iterable[Segment]:
        if not self.policy.strict_pulsar:
            return ()
        layout = self.layout
        known = layout.ancestors_of(parent for segment in layout.active for parent in segment.parent_ids)
        return (layout.segments[segment_id] for segment_id in sorted(known))


def _write_segment(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.segment_id,
        "range": str(segment.hash_range),
        "parents": list(segment.parent_ids),
        "buckets": segment.bucket_count,
        "merge_depth": segment.merge_depth,
    }


def _read_layout(document: Mapping[str, Any]) -> SegmentLayout:
    active = (
        Segment(
            value["id"],
            HashRange.parse(value["range"]),
            parent_ids=tuple(value["parents"]),
            bucket_splits=equal_splits(value["buckets"]),
            merge_depth=value["merge_depth"],
        )
        for value in document["segments"]
    )
    sealed = (
        Segment(segment_id, _ANYWHERE, SegmentState.SEALED, parent_ids=tuple(parent_ids))
        for segment_id, parent_ids in document["ancestors"]
    )
    return SegmentLayout.from_segments(document["epoch"], document["next_segment_id"], (*active, *sealed))


_ANYWHERE = HashRange(0, 0)  # the range of a sealed ancestor plays no part in any decision


def _write_stats(stats: LoadStats) -> list[Any]:
    return [write_knob(_as_float(rate)) for rate in stats.rates]


def _as_float(rate: float) -> float:
    try:
        return float(rate)
    except OverflowError:  # an integer larger than any float
        return math.inf if rate > 0 else -math.inf


def _read_stats(rates: list[Any]) -> LoadStats:
    return LoadStats(*map(float, rates))


def _write_load(record: LoadRecord) -> dict[str, Any]:
    rates = dict(zip(METRICS, _write_stats(record.stats), strict=True))
    return rates | {
        "modified_at": record.modified_at,
        "cold_since": record.cold_since,
        "observed_at": record.observed_at,
    }


def _read_load(value: Mapping[str, Any]) -> LoadRecord:
    stats = _read_stats([value[metric] for metric in METRICS])
    return LoadRecord(stats, value["modified_at"], value["cold_since"], value["observed_at"])


def _write_flat(value: History | LiveReshape | Capabilities) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _read_reshape(value: Mapping[str, Any]) -> LiveReshape:
    return LiveReshape(
        value["operation_id"],
        ReshapeKind(value["kind"]),
        tuple(value["parent_ids"]),
        value["child_count"],
        value["started_at"],
    )
