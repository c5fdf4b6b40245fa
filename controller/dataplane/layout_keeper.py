"""What a broker that keeps the layout of its topics itself offers beyond logs: Pulsar 5 and its scalable topics.

Cleave mirrors such a layout, decides, and asks for acts; the broker chooses ids and makes the epochs. After a lost
answer the layout is read, so no call here has to be repeated blindly.
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
    """The ACTIVE segments of the layout of `epoch` whose log does not exist on the broker."""

    epoch: int
    missing: tuple[int, ...]


class LayoutKeeper(ABC):
    """A data plane of this kind is a `DataPlane` too; topics are named `topic://tenant/namespace/name`."""

    @property
    @abstractmethod
    def reshape_timeout_seconds(self) -> float:
        """The longest `ask_reshape` may take, at least `call_timeout_seconds`: it is several acts of the broker's."""

    @abstractmethod
    def create_topic(self, topic: str, segments: int) -> None:
        """Make the topic with so many equal segments. One that exists stays as it is."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Delete the topic with every segment, by force. A missing topic is success."""

    @abstractmethod
    def read_layout(self, topic: str) -> SegmentLayout:
        """The layout now. Raises TopicNotFound."""

    @abstractmethod
    def ask_reshape(
        self, topic: str, kind: ReshapeKind, parent_ids: Sequence[int], bucket_count: int
    ) -> None:
        """Ask for a split at the midpoint, a merge of two neighbours, or other entry buckets.

        Call it once at a time for a topic: of two calls that overlap, the broker gives segments to the layout whose logs
        it never creates (5.0.0-M1). Raises Conflict where the broker refuses, DataPlaneTimeout where it may or may not
        have been done.
        """

    @abstractmethod
    def check_logs(self, topic: str) -> LogCheck:
        """Look for the log of every ACTIVE segment. `create_segment` makes a missing one. Raises TopicNotFound."""

    @abstractmethod
    def auto_scaler(self, topic: str) -> Mapping[str, Any] | None:
        """The topic's own setting of the broker's auto-scaler; None where it has none. Raises TopicNotFound."""

    @abstractmethod
    def set_auto_scaler(self, topic: str, setting: Mapping[str, Any] | None) -> None:
        """Replace that setting. None removes it, so that the setting of the namespace or broker holds again."""

    @abstractmethod
    def topic_subscriptions(self, topic: str) -> Mapping[str, str]:
        """Subscriptions of the topic with their kind, STREAM, QUEUE or CHECKPOINT. Raises TopicNotFound."""


def naming(plane: DataPlane) -> Callable[[str, str], str] | None:
    """How Cleave names the logs it makes on the plane; None where the broker makes and names them."""
    return None if isinstance(plane, LayoutKeeper) else plane.backing_topic


def segment_log(topic: str, descriptor: str) -> str:
    """The broker's name for the log of segment `descriptor` of `topic`."""
    hash_range, segment_id = parse_segment_descriptor(descriptor)
    return backing_topic_name(topic, Segment(segment_id, hash_range))
