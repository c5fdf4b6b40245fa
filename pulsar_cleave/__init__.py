"""Contains the client of Cleave: `Client`, and what its methods accept, return and raise.

A `Client` needs the addresses of workers and the application's credentials. A worker tells the client which
data plane a topic is on, and where the topic's logs are. Names follow Pulsar's client API for scalable topics
(PIP-466).
"""

from controller.client.checkpoint import Checkpoint, merged
from controller.client.checkpoint_consumer import SegmentStatus, Start
from controller.client.exactly_once_table import PositionTable
from controller.client.lag import BucketLag
from controller.client.queue_consumer import QueueStatus
from controller.client.stream_consumer import BucketStatus
from controller.client.topic_watch import TopicWatch
from controller.dataplane.pulsar.cluster_access import PulsarAuth
from controller.domain.errors import (
    AccessDenied,
    AccessForbidden,
    CleaveError,
    Conflict,
    DataGone,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    FencedOut,
    InvalidInput,
    LimitReached,
    LogShortened,
    LostRace,
    NotFound,
    Retryable,
    SegmentNotFound,
    SegmentTerminated,
    SessionExpired,
    StoreRefused,
    StoreUnavailable,
    SubscriptionNotFound,
    Terminal,
    TokenOutOfTime,
    TopicHeld,
    TopicNotFound,
    TopicNotLive,
    Unsupported,
)
from pulsar_cleave._asynchronous import (
    AsyncCheckpointConsumer,
    AsyncProducer,
    AsyncQueueConsumer,
    AsyncStreamConsumer,
)
from pulsar_cleave._checkpoints import CheckpointConsumer
from pulsar_cleave._client import Client
from pulsar_cleave._logs import EmbeddedAuth
from pulsar_cleave._messages import Message, MessageId
from pulsar_cleave._producer import Producer
from pulsar_cleave._queues import QueueConsumer
from pulsar_cleave._schemas import Schema
from pulsar_cleave._streams import StreamConsumer
from pulsar_cleave._work import DeadLetter, DeadLetters, KeyedWork

__all__ = [
    "AccessDenied",
    "AccessForbidden",
    "AsyncCheckpointConsumer",
    "AsyncProducer",
    "AsyncQueueConsumer",
    "AsyncStreamConsumer",
    "BucketLag",
    "BucketStatus",
    "Checkpoint",
    "CheckpointConsumer",
    "CleaveError",
    "Client",
    "Conflict",
    "DataGone",
    "DataPlaneTimeout",
    "DataPlaneUnavailable",
    "DeadLetter",
    "DeadLetters",
    "EmbeddedAuth",
    "FencedOut",
    "InvalidInput",
    "KeyedWork",
    "LimitReached",
    "LogShortened",
    "LostRace",
    "Message",
    "MessageId",
    "NotFound",
    "PositionTable",
    "Producer",
    "PulsarAuth",
    "QueueConsumer",
    "QueueStatus",
    "Retryable",
    "Schema",
    "SegmentNotFound",
    "SegmentStatus",
    "SegmentTerminated",
    "SessionExpired",
    "Start",
    "StoreRefused",
    "StoreUnavailable",
    "StreamConsumer",
    "SubscriptionNotFound",
    "Terminal",
    "TokenOutOfTime",
    "TopicHeld",
    "TopicNotFound",
    "TopicNotLive",
    "TopicWatch",
    "Unsupported",
    "merged",
]
