"""What commands ask of Cleave, by subject: the port behind which are the database (`direct`) and a server (`over_http`).

Answers are documents as the commands print them, with instants as `datetime`; the columns of lists are in `columns`, so that both ways give
the same. Errors are those of `domain.errors`, whichever way they came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from controller.domain.layout import SegmentLayout
from controller.domain.situation import Situation
from controller.entrypoints.dead_letter_desk import Letters

if TYPE_CHECKING:  # what a command on one subject does not need of the others
    from controller.bundles.services.split_policies import PolicyOfNamespace
    from controller.bundles.store.cycles import StoredCycle
    from controller.entrypoints.backtest_requests import AskedBacktest
    from controller.services.policy_backtest import BacktestAnswer, Progress

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic with its layout."""

    name: str
    state: str
    data_plane: str
    properties: Mapping[str, Any]
    layout: SegmentLayout


class Topics(Protocol):
    """Topics, and their layouts now and then. Each names its topic in full, and raises TopicNotFound."""

    def find(self, topic: str) -> FoundTopic:
        """One, in whatever state but deleted."""

    def layout(self, topic: str, at: int | datetime | None) -> SegmentLayout:
        """Its layout now, or at an epoch or instant. Raises NotFound where it had none then."""


class Consumers(Protocol):
    """Who consumes a topic, and what nobody gets. Each names its topic in full, and raises TopicNotFound."""

    def lag(self, topic: str, subscription: str) -> Sequence[Row]:
        """As `services.subscription_lag.lag`."""


@dataclass(frozen=True, slots=True)
class FoundBacktest:
    """What was asked, with the columns `BACKTEST`, and what came out, with the columns `BACKTEST_RESULT`."""

    run: Row
    results: Sequence[Row]


class Backtests(Protocol):
    """Backtests, and those that were run."""

    def run(self, asked: AskedBacktest, progress: Progress) -> BacktestAnswer:
        """Ask, compute, keep; `progress` is told by what computes here. Raises as `services.policy_backtest`."""

    def list(self, limit: int) -> Sequence[Row]:
        """Newest first, with the columns `BACKTEST`."""

    def find(self, run_id: int) -> FoundBacktest:
        """One. Raises NotFound."""


class DeadLetters(Protocol):
    """What a subscription could not handle. Each names its topic in full; raises as `dead_letter_desk.look`."""

    def look(self, topic: str, subscription: str, limit: int) -> Letters:
        """The oldest, `limit` at most."""


@dataclass(frozen=True, slots=True)
class FoundBundles:
    """Bundles of a cluster with the columns `BUNDLE`, and how many there are in all."""

    cluster: str
    rows: Sequence[Row]
    known: int


@dataclass(frozen=True, slots=True)
class FoundBrokers:
    """Brokers with the columns `BROKER`, and the names of those that are active now; None where no broker answered."""

    rows: Sequence[Row]
    active: Sequence[str] | None


class Bundles(Protocol):
    """Namespace bundles as they were aggregated last, and what the balancer proposes."""

    def list(self, namespace: str | None, limit: int) -> FoundBundles:
        """By namespace, in the order of the ring. Raises NotFound for a namespace of which none is known."""

    def proposals(
        self, *, namespace: str | None, states: Sequence[str], cycle_id: int | None, limit: int
    ) -> Sequence[Row]:
        """Newest first, of all states where none is named, with the columns `PROPOSAL`."""

    def brokers(self) -> FoundBrokers:
        """Those that were read, the fullest first."""

    def bundle_of(self, topic: str) -> str | None:
        """Where a topic of that complete name lies; None where its namespace is not known."""

    def split_policy(self, namespace: str) -> PolicyOfNamespace:
        """When and how its bundles are split. Raises NotFound."""

    def merges(self, namespace: str | None) -> Sequence[Row]:
        """Which cold bundles could be one, by namespace, as `bundles.rows.merge_document`. Raises NotFound."""

    def cycle(self, cycle_id: int) -> StoredCycle:
        """What a cycle was decided on, and its answer. Raises NotFound."""


class Pictures(Protocol):
    """What people look at again and again."""

    def fleet(self, find: str, limit: int) -> Row:
        """As `pictures.of_fleet`."""

    def topic(self, name: str) -> Row:
        """As `pictures.of_topic`."""


class Policies(Protocol):
    """Policies at levels: `cluster`, a namespace, or a topic's full name."""

    def stored(self, level: str) -> Row:
        """The knobs that the level sets. Raises TopicNotFound."""

    def in_force(self, topic: str) -> Sequence[Row]:
        """Every knob of a topic, with the level it comes from. Raises TopicNotFound."""


class Decisions(Protocol):
    """Topics as they would be decided on."""

    def situations(self, topic: str, changes: Mapping[str, Any]) -> tuple[Situation, Situation]:
        """What would be decided on now, under the policy in force and under the changed one. Raises as `services.what_if.ask`."""


class ControlPlane(Protocol):
    """All of it. Whoever has it may be asked by one thread at a time."""

    @property
    def topics(self) -> Topics:
        """See `Topics`."""

    @property
    def policies(self) -> Policies:
        """See `Policies`."""

    @property
    def decisions(self) -> Decisions:
        """See `Decisions`."""

    @property
    def consumers(self) -> Consumers:
        """See `Consumers`."""

    @property
    def backtests(self) -> Backtests:
        """See `Backtests`."""

    @property
    def dead_letters(self) -> DeadLetters:
        """See `DeadLetters`."""

    @property
    def bundles(self) -> Bundles:
        """See `Bundles`."""

    @property
    def pictures(self) -> Pictures:
        """See `Pictures`."""
