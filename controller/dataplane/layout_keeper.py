"""Defines the data plane of a broker that keeps the layout of its topics itself: Pulsar 5 and its scalable
topics.

Cleave mirrors such a layout, decides, and requests reshapes; the broker chooses ids and creates the epochs.
After a lost response Cleave reads the layout, so no call needs to be repeated without a check.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from controller.dataplane.base import DataPlane
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment, backing_topic_name, parse_segment_descriptor


class LogCheck(NamedTuple):
    """The ACTIVE segments, in the layout of `epoch`, whose log does not exist on the broker."""

    epoch: int
    missing: tuple[int, ...]


class LayoutKeeper(ABC):
    """A data plane whose broker keeps the layouts. Each implementation is also a `DataPlane`; topics are
    named `topic://tenant/namespace/name`.
    """

    @property
    @abstractmethod
    def reshape_timeout_seconds(self) -> float:
        """Longest duration of `ask_reshape`, at least `call_timeout_seconds`, because the broker performs
        several actions.
        """

    @abstractmethod
    def create_topic(self, topic: str, segments: int) -> None:
        """Create the topic with `segments` equal segments. An existing topic does not change."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Delete the topic with every segment, by force. A missing topic is success."""

    @abstractmethod
    def read_layout(self, topic: str) -> SegmentLayout:
        """Return the present layout. Raises TopicNotFound."""

    @abstractmethod
    def ask_reshape(
        self, topic: str, kind: ReshapeKind, parent_ids: Sequence[int], bucket_count: int
    ) -> None:
        """Request a split at the midpoint, a merge of two neighbours, or a change of the entry buckets, and
        wait for the broker's answer. `parent_ids` are the segment to split or rebucket, or the two segments
        to merge. `bucket_count` is the new number of entry buckets; splits and merges ignore `bucket_count`.

        Make only one call at a time for a topic: if two calls overlap, the broker (5.0.0-M1) adds segments to
        the layout whose logs it never creates. Raises Conflict if the broker will always refuse, Unsupported
        if it has no such request, DataPlaneUnavailable if it failed, DataPlaneTimeout if the reshape may or
        may not have happened.
        """

    @abstractmethod
    def check_logs(self, topic: str) -> LogCheck:
        """Return the ACTIVE segments whose log does not exist on the broker, and the epoch of their layout.

        Creates no log; `create_segment` creates a missing log. Raises TopicNotFound.
        """

    @abstractmethod
    def auto_scaler(self, topic: str) -> Mapping[str, Any] | None:
        """Return the topic's own setting of the broker's auto-scaler, None if it has none. Raises
        TopicNotFound.
        """

    @abstractmethod
    def set_auto_scaler(self, topic: str, setting: Mapping[str, Any] | None) -> None:
        """Replace the topic's own setting of the broker's auto-scaler with `setting`. None removes it, so
        that the setting of the namespace or broker applies. Raises TopicNotFound.
        """

    @abstractmethod
    def topic_subscriptions(self, topic: str) -> Mapping[str, str]:
        """Return the subscriptions of the topic with their kinds: STREAM, QUEUE or CHECKPOINT. Raises
        TopicNotFound.
        """


def naming(plane: DataPlane) -> Callable[[str, str], str] | None:
    """Return the function that names the logs which Cleave creates on the plane: its arguments are a topic
    and a segment's descriptor. None if the broker creates and names the logs.
    """
    return None if isinstance(plane, LayoutKeeper) else plane.backing_topic


def segment_log(topic: str, descriptor: str) -> str:
    """Return the broker's name for the log of segment `descriptor` of `topic`. Raises InvalidInput for a text
    that is not a descriptor, or a topic not named `topic://tenant/namespace/name`.
    """
    hash_range, segment_id = parse_segment_descriptor(descriptor)
    return backing_topic_name(topic, Segment(segment_id, hash_range))
