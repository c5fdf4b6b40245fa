"""The evaluation input: all data that one decision may use, as one value with a canonical text.

The decision log stores the text together with the code version, so every decision can be replayed: the input that
is read back gives the identical evaluation. The callers collect the parts: the autoscaler, a replay, a test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from controller.domain.approval_rule import Approval
from controller.domain.approval_states import ApprovalState
from controller.domain.entry_buckets import equal_splits
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.hash_range import RING_SIZE, HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import METRICS, LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy, UnreadablePolicy
from controller.domain.policy_parameters import NON_FINITE, ParameterValue, misfit, write_parameter
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment, SegmentState
from controller.domain.whole_numbers import MOST, whole, wholes

TICKS_OF_MEMORY = 45
"""Number of loads that are remembered per segment; the policy's `load_memory_seconds` gives the time that they span.
"""


@dataclass(frozen=True, slots=True)
class History:
    """Start (the intent) of the last committed operation of each kind, in milliseconds since the Unix epoch; None: never.

    A recut counts as a split and as a merge. `last_consumer_act_at`: the last operation that gave consumers places.
    """

    last_split_at: int | None = None
    last_merge_at: int | None = None
    last_rebucket_at: int | None = None
    last_consumer_act_at: int | None = None


@dataclass(frozen=True, slots=True)
class LiveReshape:
    """A running reshape, from its intent (`started_at`, milliseconds since the Unix epoch) to the commit or the end of
    its abort. Its parents are busy, its children count as segments, and its start begins cooldowns. `for_consumers`:
    True if the reshape gives consumers places (`is_for_consumers`).
    """

    operation_id: int
    kind: ReshapeKind
    parent_ids: tuple[int, ...]
    child_count: int
    started_at: int
    child_places: int = 0
    """Consumers that the children can serve if they share segments; 0 if the number is unknown."""
    for_consumers: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of the data plane. `midpoint_only`: a segment can be cut at its midpoint only. `max_children`:
    maximum number of children of one reshape. `recut`: several adjacent segments can become several others. Without
    `shared_buckets` each consumer needs its own segment.
    """

    midpoint_only: bool = False
    max_children: int = 2
    recut: bool = False
    shared_buckets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationInput:
    """One topic at `now` (milliseconds since the Unix epoch). Immutable; the constructor checks nothing.

    `loads` and `recent_loads` (newest last) are keyed by segment id; under `adaptive` a segment that was not measured
    yet may have an expected load, derived from its ancestors. `stream_consumers` maps each subscription whose consumers
    divide the segments to the number of these consumers. `policy` is resolved. `consumers_changed_at`: time at which a
    consumer last joined or left; None if unknown. `foreign_controller`: True if the broker's own auto-scaler also acts
    on the topic, so that nothing may be decided. `is_held`: True if the topic's logs must be compared with the journal,
    or are ahead of the journal.

    `clients`, `producers`: estimated numbers of consumers and producers that are connected to one segment; 0 if they
    are not counted. `reconnections_left`: number of the topic's clients that may be made to reconnect at this time,
    None for no limit. `cluster_reconnections_left`: the same for the clients of all topics; None if
    `reconnections_left` is the smaller of both numbers, as in inputs that were stored without this field. `strikes`:
    number of consecutive cuts that left nearly all of the load in this segment, by its id. `sketches`: key histograms
    of the load of segments, by id (see `key_sketch`). `kept`: start and end, in milliseconds since the Unix epoch, of
    the time in which a person excludes a segment from merges, by its id. `approvals`: for each action the latest
    approval that is pending, approved or rejected, if the policy requires approvals.
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
    is_held: bool = False
    consumers_changed_at: int | None = None
    clients: int = 0
    producers: int = 0
    reconnections_left: float | None = None
    cluster_reconnections_left: float | None = None
    strikes: Mapping[int, int] = field(default_factory=dict)
    sketches: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    kept: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    approvals: tuple[Approval, ...] = ()
    now: int

    @property
    def reconnections(self) -> int:
        """Number of clients that have to reconnect when one segment is sealed."""
        return self.clients + self.producers

    def to_json(self) -> str:
        """Return the input as canonical text: JSON with sorted keys, without spaces, with integral numbers as
        integers.

        The text contains only the data that a decision reads. The layout is written under four keys: `epoch`,
        `next_segment_id`, `segments` (the active segments with the ids of their parents; with creation times only
        under the profile `adaptive`) and `ancestors` (sealed ancestors; empty unless the policy sets `strict_pulsar`,
        because Pulsar counts their merges). Loads of segments that are not active are left out. Every other key is
        the name of a field. The keys of `_optional_fields` are absent if their fields have the defaults.
        """
        active = self.layout.active
        loads = {s.segment_id: self.loads[s.segment_id] for s in active if s.segment_id in self.loads}
        recent = {
            s.segment_id: self.recent_loads[s.segment_id] for s in active if s.segment_id in self.recent_loads
        }
        document = {
            "epoch": self.layout.epoch,
            "next_segment_id": self.layout.next_segment_id,
            "segments": [_write_segment(segment, self._counts_ages) for segment in active],
            "ancestors": [[s.segment_id, list(s.parent_ids)] for s in self._ancestors()],
            "loads": {str(segment_id): _write_load(record) for segment_id, record in loads.items()},
            "recent_loads": {
                str(segment_id): [_write_stats(s) for s in ticks] for segment_id, ticks in recent.items()
            },
            "stream_consumers": dict(self.stream_consumers),
            "policy": _write_policy(self.policy),
            "history": _write_flat(self.history),
            "in_flight": [
                _write_flat(reshape) for reshape in sorted(self.in_flight, key=lambda r: r.operation_id)
            ],
            "capabilities": _write_flat(self.capabilities),
            "now": self.now,
        }
        document |= self._optional_fields(active)
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def _optional_fields(self, active: Sequence[Segment]) -> dict[str, Any]:
        """Return the fields of the document that only some inputs have, `foreign_controller` to `approvals`, as JSON
        values by the field's name; segment ids as keys are texts. A field that has its default is left out. `active`:
        the active segments; values of other segments are left out, except in `approvals`.
        """
        ids = [segment.segment_id for segment in active]
        values: dict[str, Any] = {
            "foreign_controller": self.foreign_controller or None,
            "is_held": self.is_held or None,
            "consumers_changed_at": self.consumers_changed_at,
            "clients": self.clients or None,
            "producers": self.producers or None,
            "reconnections_left": _write_number(self.reconnections_left),
            "cluster_reconnections_left": _write_number(self.cluster_reconnections_left),
            "strikes": {str(i): n for i in ids if (n := self.strikes.get(i, 0))} or None,
            "kept": {str(i): list(self.kept[i]) for i in ids if i in self.kept} or None,
            "sketches": {
                str(i): [write_parameter(float(messages)) for messages in sketch]
                for i in ids
                if (sketch := self.sketches.get(i))
            }
            or None,
            "approvals": [
                _write_flat(approval)
                for approval in sorted(self.approvals, key=lambda a: (a.kind, a.segment_ids))
            ]
            or None,
        }
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the input in a text of `to_json`. A decision on the result is identical to a decision on the
        original input.

        The result lacks data that no decision reads: sealed segments with their loads, and creation times unless the
        profile is `adaptive`. Entry buckets have equal widths, because only their number affects decisions. Under
        `strict_pulsar`, sealed ancestors are present with the range 0000-0000, which no decision reads.

        Raises InvalidInput or ValueError for a value of a wrong kind, InvalidPolicy for a policy with an unknown
        parameter, and Python's errors for a text of another structure (`decision_replay.UNREADABLE` has all of these
        errors).
        """
        document = json.loads(text)
        return cls(
            layout=_read_layout(document),
            loads={int(key): _read_load(value) for key, value in document["loads"].items()},
            recent_loads={
                int(key): tuple(_read_stats(rates) for rates in ticks)
                for key, ticks in document["recent_loads"].items()
            },
            stream_consumers={
                name: whole(count, "stream_consumers") for name, count in document["stream_consumers"].items()
            },
            policy=_read_policy(document["policy"]),
            history=History(**{name: _read_instant(at, name) for name, at in document["history"].items()}),
            in_flight=tuple(_read_reshape(value) for value in document["in_flight"]),
            capabilities=_read_capabilities(document["capabilities"]),
            foreign_controller=_read_bool(document.get("foreign_controller", False), "foreign_controller"),
            is_held=_read_bool(document.get("is_held", False), "is_held"),
            consumers_changed_at=_read_instant(document.get("consumers_changed_at"), "consumers_changed_at"),
            clients=whole(document.get("clients", 0), "clients"),
            producers=whole(document.get("producers", 0), "producers"),
            reconnections_left=_read_number(document.get("reconnections_left"), "reconnections_left"),
            cluster_reconnections_left=_read_number(
                document.get("cluster_reconnections_left"), "cluster_reconnections_left"
            ),
            sketches={
                int(key): tuple(map(float, sketch)) for key, sketch in document.get("sketches", {}).items()
            },
            strikes={int(key): whole(n, "strikes") for key, n in document.get("strikes", {}).items()},
            kept={int(key): _read_span(span) for key, span in document.get("kept", {}).items()},
            approvals=tuple(_read_approval(value) for value in document.get("approvals", ())),
            now=whole(document["now"], "now", -MOST),
        )

    @property
    def _counts_ages(self) -> bool:
        """True if the creation time of a segment affects the decision."""
        return self.policy.profile == "adaptive"

    def _ancestors(self) -> Iterable[Segment]:
        """Return the ancestors of the active segments that are in the layout, without those that only a pruned segment
        leads to, in the order of their ids; empty unless the policy sets `strict_pulsar`.
        """
        if not self.policy.strict_pulsar:
            return ()
        layout = self.layout
        ancestors = layout.ancestors_of(parent for segment in layout.active for parent in segment.parent_ids)
        return (layout.segments[segment_id] for segment_id in sorted(ancestors))


def _write_segment(segment: Segment, with_age: bool) -> dict[str, Any]:
    """Return the segment as JSON values. `with_age`: True to add its creation time."""
    age = {"created_at": segment.created_at_ms} if with_age else {}
    return age | {
        "id": segment.segment_id,
        "range": str(segment.hash_range),
        "parents": list(segment.parent_ids),
        "buckets": segment.bucket_count,
        "merge_depth": segment.merge_depth,
    }


def _read_layout(document: Mapping[str, Any]) -> SegmentLayout:
    """Return the layout of a document: the active segments with buckets of equal width, and their ancestors, if the
    document has any, as sealed segments with the range 0000-0000. Raises InvalidInput for a value of a wrong kind, and
    Python's errors for another structure (KeyError for a missing field, TypeError for a range that is not a text).
    """
    active = (
        Segment(
            whole(value["id"], "id"),
            HashRange.parse(value["range"]),
            parent_ids=wholes(value["parents"], "parents"),
            created_at_ms=whole(value.get("created_at", 0), "created_at", -MOST),
            bucket_splits=equal_splits(whole(value["buckets"], "buckets", 1, RING_SIZE)),
            merge_depth=whole(value["merge_depth"], "merge_depth"),
        )
        for value in document["segments"]
    )
    sealed = (
        Segment(
            whole(segment_id, "ancestors"),
            _ANYWHERE,
            SegmentState.SEALED,
            parent_ids=wholes(parent_ids, "ancestors"),
        )
        for segment_id, parent_ids in document["ancestors"]
    )
    epoch, next_id = (whole(document[name], name) for name in ("epoch", "next_segment_id"))
    return SegmentLayout.from_segments(epoch, next_id, (*active, *sealed))


_ANYWHERE = HashRange(0, 0)  # no decision depends on the range of a sealed ancestor


_WHY_UNREADABLE = "unreadable"


def _write_policy(policy: AutoScalePolicy) -> dict[str, Any]:
    """Return the policy as JSON values; for a policy that could not be read, with the reason in the field
    `unreadable`.
    """
    reason = {_WHY_UNREADABLE: policy.why} if isinstance(policy, UnreadablePolicy) else {}
    return {**policy.to_document(), **reason}


def _read_policy(document: Mapping[str, Any]) -> AutoScalePolicy:
    """Return the policy that `_write_policy` wrote; an UnreadablePolicy with default parameters if the document has the
    field `unreadable`. Raises InvalidPolicy for an unknown parameter or a value of a wrong type, and InvalidInput for a
    reason that is not a text.
    """
    if _WHY_UNREADABLE not in document:
        return AutoScalePolicy.from_document(document)
    reason = document[_WHY_UNREADABLE]
    if not isinstance(reason, str):
        raise InvalidInput(f"{_WHY_UNREADABLE} = {shown(reason)}; give a text")
    return UnreadablePolicy(why=reason)


def _write_stats(stats: LoadStats) -> list[Any]:
    return [write_parameter(_as_float(rate)) for rate in stats.rates]


def _as_float(rate: float) -> float:
    """Return the rate as a float; an infinity of the same sign for an integer beyond the range of floats."""
    try:
        return float(rate)
    except OverflowError:  # an integer larger than any float
        return math.inf if rate > 0 else -math.inf


def _read_stats(rates: list[Any]) -> LoadStats:
    return LoadStats(*map(float, rates))


def _write_number(value: float | None) -> ParameterValue | None:
    """Return the number as a JSON value, and None for None."""
    return None if value is None else write_parameter(float(value))


def _write_load(record: LoadRecord) -> dict[str, Any]:
    rates = dict(zip(METRICS, _write_stats(record.stats), strict=True))
    return rates | {
        "modified_at": record.modified_at,
        "cold_since": record.cold_since,
        "observed_at": record.observed_at,
    }


def _read_load(value: Mapping[str, Any]) -> LoadRecord:
    stats = _read_stats([value[metric] for metric in METRICS])
    return LoadRecord(
        stats,
        whole(value["modified_at"], "modified_at", -MOST),
        _read_instant(value["cold_since"], "cold_since"),
        whole(value["observed_at"], "observed_at", -MOST),
    )


def _write_flat(value: History | LiveReshape | Capabilities | Approval) -> dict[str, Any]:
    """Return the fields by name, for JSON. Fields of `_OMITTED_IF_EMPTY` that are None, 0 or False are left out."""
    values = {f.name: getattr(value, f.name) for f in fields(value)}
    return {
        name: field_value
        for name, field_value in values.items()
        if field_value or name not in _OMITTED_IF_EMPTY
    }


_OMITTED_IF_EMPTY = ("last_consumer_act_at", "child_places", "for_consumers")
"""Fields that are written only if they are not None, 0 or False."""


def _read_reshape(value: Mapping[str, Any]) -> LiveReshape:
    return LiveReshape(
        whole(value["operation_id"], "operation_id"),
        ReshapeKind(value["kind"]),
        wholes(value["parent_ids"], "parent_ids"),
        whole(value["child_count"], "child_count"),
        whole(value["started_at"], "started_at", -MOST),
        whole(value.get("child_places", 0), "child_places"),
        _read_bool(value.get("for_consumers", False), "for_consumers"),
    )


def _read_approval(value: Mapping[str, Any]) -> Approval:
    return Approval(
        ReshapeKind(value["kind"]).value,
        wholes(value["segment_ids"], "segment_ids"),
        whole(value["parts"], "parts"),
        ApprovalState(value["state"]),
        _read_instant(value["answered_at"], "answered_at"),
    )


def _read_capabilities(value: Mapping[str, Any]) -> Capabilities:
    fields_read: dict[str, Any] = {
        name: whole(field_value, name) if name == "max_children" else _read_bool(field_value, name)
        for name, field_value in value.items()
    }
    return Capabilities(**fields_read)


def _read_instant(value: Any, name: str) -> int | None:
    return None if value is None else whole(value, name, -MOST)


def _read_span(value: Any) -> tuple[int, int]:
    """Return the two instants of a list, in milliseconds since the Unix epoch. Raises InvalidInput if they are not
    whole numbers, and ValueError for a list of another length.
    """
    began, ends = value
    return whole(began, "kept", -MOST), whole(ends, "kept", -MOST)


def _read_number(value: Any, name: str) -> float | None:
    """Return a value of `_write_number` as a float, and None for None. Raises InvalidInput, which names the field
    `name`, for any other value, booleans and integers beyond the range of floats included.
    """
    if value is None:
        return None
    if value in NON_FINITE:
        return float(value)
    expected = misfit(value, float)
    if expected is not None:
        raise InvalidInput(f"{name} = {shown(value)}; give {expected}")
    return float(value)


def _read_bool(value: Any, name: str) -> bool:
    """Return the value unchanged. Raises InvalidInput, which names the field `name`, unless it is a boolean."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} = {shown(value)}; give true or false")
    return value
