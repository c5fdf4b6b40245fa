"""Refusal of an algorithm to cut a bundle, or to do a part of a request: a reason, values, and a sentence.

In Pulsar such a split succeeds silently and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CutRefusalReason(StrEnum):
    """Reason for which there is no cut. The comment says what `value` and `needed` hold."""

    # The bundle.
    NOT_SPLITTABLE = "not-splittable"  # upper - lower; the least that can be cut
    TOO_FEW_TOPICS = "too-few-topics"  # topics in the bundle, or those of the topic that was named; 2
    ONE_HASH = "one-hash"  # distinct places of those topics; 2
    AT_MAX_BUNDLES = "at-max-bundles"  # bundles the namespace may still gain; bundles this would add
    # Load.
    NO_LOAD = "no-load"  # distinct places with any load; 2
    BELOW_LIMIT = "below-limit"  # the rate nearest to its limit; the rate from which it is cut
    NONE_OUTSTANDING = "none-outstanding"  # the highest rate of one place; the rate of an outstanding one
    # Requested by name or number.
    NO_POSITION_INSIDE = "no-position-inside"  # positions given; 1
    POSITION_OUTSIDE = "position-outside"  # the position; the edge it is beyond
    TOPIC_NOT_HERE = "topic-not-here"  # topics of that name in the bundle; 1
    # Impossible for all cuts.
    INSEPARABLE = "inseparable"  # topics at one place; 1
    ABOVE_LIMIT_ALONE = "above-limit-alone"  # the rate of one place; the limit
    FEWER_PARTS = "fewer-parts"  # parts made; parts requested


_SENTENCES = {
    CutRefusalReason.NOT_SPLITTABLE: "it spans {value} hashes; a cut needs {needed}",
    CutRefusalReason.TOO_FEW_TOPICS: "{value} topics in it; a split needs {needed}",
    CutRefusalReason.ONE_HASH: "all its topics share one hash; a cut needs {needed} different ones",
    CutRefusalReason.AT_MAX_BUNDLES: (
        "the namespace may gain {value} bundles; this adds {needed}: raise the cap or merge"
    ),
    CutRefusalReason.NO_LOAD: "load at {value} different hashes; dividing it needs {needed}",
    CutRefusalReason.BELOW_LIMIT: "its {metric} is {value}; a cut takes {needed}, and more than the limit",
    CutRefusalReason.NONE_OUTSTANDING: (
        "no topic stands out: the highest {metric} is {value}; outstanding is {needed} or more"
    ),
    CutRefusalReason.NO_POSITION_INSIDE: "none of {value} positions is strictly inside it; give at least {needed}",
    CutRefusalReason.POSITION_OUTSIDE: "position {value} is not strictly inside the bundle; its edge is {needed}",
    CutRefusalReason.TOPIC_NOT_HERE: (
        "{value} topics of that name are known in the bundle; look up which bundle it is in"
    ),
    CutRefusalReason.INSEPARABLE: "{value} topics share a hash and stay together",
    CutRefusalReason.ABOVE_LIMIT_ALONE: (
        "its {metric} is {value}, above {needed} alone, and no cut divides a topic: add partitions"
    ),
    CutRefusalReason.FEWER_PARTS: (
        "{value} parts instead of {needed}: not enough different hashes with load, or room for bundles"
    ),
}


@dataclass(frozen=True, slots=True)
class CutRefusal:
    """A request, or a part of it, that was not done. `subject`: the text of the bundle, or the names of topics.

    `CutRefusalReason` says what `value` and `needed` hold. `metric` names their kind (`msg_rate`, `byte_rate`, `topics`, `hashes`,
    `bundles`, `positions`, `hash`).
    """

    subject: str
    reason: CutRefusalReason
    metric: str
    value: float
    needed: float | None = None

    @property
    def sentence(self) -> str:
        """One line for people, with the figures."""
        shown = _hash_shown if self.metric == "hash" else _number_shown
        sentence = _SENTENCES[self.reason].format(
            metric=self.metric,
            value=shown(self.value),
            needed="" if self.needed is None else shown(self.needed),
        )
        return f"{self.subject}: {sentence}"


def _number_shown(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def _hash_shown(value: float) -> str:
    return f"0x{int(value):08x}"
