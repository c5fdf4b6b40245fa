"""Operators: what Cleave's own forms do, as tasks of people's DAGs.

A task stands for one request: a retried or cleared one gets the operation of its first attempt. What cannot succeed as it
was asked fails at once, with one line; what may succeed later is tried again after the time that the error asks for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import get_current_context

from cleave_provider.failures import told_apart
from cleave_provider.hooks.cleave import CleaveHook
from cleave_provider.links.cleave import OPERATION_KEY, BacktestLink, OperationLink, PolicyLink
from cleave_provider.operators.retried import RetriedOperator
from cleave_provider.request import request_of

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

REASON = "asked for in Airflow"
_NOBODY = {"request_key": "airflow/dry-run", "actor": "airflow"}


class CleaveOperator(RetriedOperator):
    """What the operators share. A subclass names its function of `controller.entrypoints.tasks` and what it asks of it."""

    ui_color = "#d7f0ea"

    def __init__(self, *, cleave_conn_id: str = CleaveHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cleave_conn_id = cleave_conn_id

    @told_apart
    def execute(self, context: Context) -> dict[str, Any]:
        """What the task's function answers; the XCom `operation_id` is the operation's, where it is one."""
        document = self.ask(self.hook.access(), request_of(context))
        if OPERATION_KEY in document:
            context["ti"].xcom_push(key=OPERATION_KEY, value=document[OPERATION_KEY])
        return document

    @property
    def hook(self) -> CleaveHook:
        """Made when it is asked for: no connection is looked up while DAGs are parsed."""
        return CleaveHook(self.cleave_conn_id)

    @abstractmethod
    def ask(self, access: dict[str, Any], request: dict[str, str]) -> dict[str, Any]:
        """Call the function."""


class ReshapeOperator(CleaveOperator):
    """An act on segments of one topic.

    :param topic: with or without its scheme.
    :param reason: why, for the journal.
    :param timeout_seconds: how long one attempt waits. The operation goes on in any case, and a retry waits for the same one.
    :param dry_run: say in the log and in the XCom what would happen, and change nothing.
    """

    function: ClassVar[str]
    """Name of the act in `controller.entrypoints.tasks`."""
    operator_extra_links = (OperationLink(),)

    def __init__(
        self,
        *,
        topic: str,
        reason: str = REASON,
        timeout_seconds: float = 60,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.reason = reason
        self.timeout_seconds = timeout_seconds
        self.is_dry_run = dry_run  # `dry_run` is a method of every operator

    def dry_run(self) -> None:
        """Say what would happen. For people at a prompt; Airflow itself calls it nowhere since 3.0."""
        self._reshape(self.hook.access(), _NOBODY, is_dry_run=True)

    def ask(self, access: dict[str, Any], request: dict[str, str]) -> dict[str, Any]:
        """See the base."""
        return self._reshape(access, request, is_dry_run=self.is_dry_run)

    @abstractmethod
    def wanted(self) -> dict[str, Any]:
        """The fields of the form that are this act's own; None is left out."""

    def _reshape(
        self, access: dict[str, Any], request: Mapping[str, str], *, is_dry_run: bool
    ) -> dict[str, Any]:
        from controller.entrypoints import tasks

        of_every_act = {
            "topic": self.topic,
            "reason": self.reason,
            "timeout_seconds": self.timeout_seconds,
            "dry_run": is_dry_run,
        }
        params = {**of_every_act, **_given(self.wanted())}
        answer: dict[str, Any] = getattr(tasks, self.function)(**access, **request, params=params)
        return answer


class SplitSegmentOperator(ReshapeOperator):
    """Split a segment: at the midpoint, at cut points, or into equal parts.

    :param segment: id of an ACTIVE segment.
    :param cut_points: the first hash of each new segment but the first, as numbers or text (`0x4000`).
    :param parts: into so many segments of equal width, instead of cut points.
    """

    template_fields: Sequence[str] = ("topic", "segment", "cut_points", "parts", "reason")
    function = "split_segment"

    def __init__(
        self,
        *,
        segment: int | str,
        cut_points: Sequence[int | str] | str | None = None,
        parts: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.segment = segment
        self.cut_points = cut_points
        self.parts = parts

    def wanted(self) -> dict[str, Any]:
        """See the base."""
        return {"segment": self.segment, "cut_points": self.cut_points, "parts": self.parts}


class MergeSegmentsOperator(ReshapeOperator):
    """Merge two neighbouring segments.

    :param first: id of an ACTIVE segment.
    :param second: that of its neighbour.
    """

    template_fields: Sequence[str] = ("topic", "first", "second", "reason")
    function = "merge_segments"

    def __init__(self, *, first: int | str, second: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first = first
        self.second = second

    def wanted(self) -> dict[str, Any]:
        """See the base."""
        return {"first": self.first, "second": self.second}


class SetAutoScalePolicyOperator(CleaveOperator):
    """Set the auto-scale policy of the cluster, a namespace or a topic.

    :param level: `cluster`, `tenant/namespace`, or `topic://tenant/namespace/name`.
    :param knobs: by name; None takes a knob back, so that the level above applies.
    :param replace: take back every knob of the level that is not given.
    :param dry_run: say which knobs would change and which topics would be treated differently at once, and change nothing.
    """

    template_fields: Sequence[str] = ("level", "knobs")
    template_fields_renderers: ClassVar[dict[str, str]] = {"knobs": "json"}
    operator_extra_links = (PolicyLink(),)

    def __init__(
        self,
        *,
        level: str,
        knobs: Mapping[str, Any],
        replace: bool = False,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.level = level
        self.knobs = knobs
        self.replace = replace
        self.is_dry_run = dry_run

    def dry_run(self) -> None:
        """As that of the acts on segments."""
        self._set(self.hook.access(), _NOBODY, is_dry_run=True)

    def ask(self, access: dict[str, Any], request: dict[str, str]) -> dict[str, Any]:
        """See the base."""
        return self._set(access, request, is_dry_run=self.is_dry_run)

    def _set(self, access: dict[str, Any], request: dict[str, str], *, is_dry_run: bool) -> dict[str, Any]:
        from controller.entrypoints import tasks

        wish = {
            "level": self.level,
            "knobs": dict(self.knobs),
            "replace": self.replace,
            "dry_run": is_dry_run,
        }
        return tasks.set_policy(
            **access, params=wish, request_key=request["request_key"], actor=request["actor"]
        )


class BacktestOperator(CleaveOperator):
    """Say what policies would have cost on the load that was recorded. Changes nothing but the list of backtests.

    :param policies: `in-force` (each topic's own), `adaptive`, `pip483`, with knobs as `adaptive:target_use=0.8`; a list, or one
        text with commas, spaces or lines between them. None given: these three.
    :param topics: names, likewise; neither they nor a namespace means all topics.
    :param since: an instant, or so long before the run was asked for: `12h`, `7d`.
    :param until: the same; None: when the run was asked for.
    :param weights: of the cost, `excess=20,change_seconds=60`.
    :param seeds: so many draws of each load.
    :param engine: `spark` or `here`; None: by the work.
    :param spark_conn_id: a connection of type `spark` or `spark_connect`; None: as `SPARK_MASTER` says.
    """

    template_fields: Sequence[str] = (
        "policies", "topics", "namespace", "since", "until", "weights", "seeds",
    )  # fmt: skip
    operator_extra_links = (BacktestLink(),)

    def __init__(
        self,
        *,
        policies: Sequence[str] | str = (),
        topics: Sequence[str] | str | None = None,
        namespace: str | None = None,
        since: str = "7d",
        until: str | None = None,
        weights: str = "",
        seeds: int | str = 1,
        engine: str | None = None,
        spark_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.policies = policies
        self.topics = topics
        self.namespace = namespace
        self.since = since
        self.until = until
        self.weights = weights
        self.seeds = seeds
        self.engine = engine
        self.spark_conn_id = spark_conn_id

    def ask(self, access: dict[str, Any], request: dict[str, str]) -> dict[str, Any]:
        """See the base."""
        from controller.entrypoints import tasks

        if self.spark_conn_id is not None:
            access["extras"] |= self.hook.spark_settings(self.spark_conn_id)
        params = {
            "policies": _listed(self.policies),
            "topics": _listed(self.topics),
            "namespace": self.namespace,
            "from": self.since,
            "to": self.until,
            "weights": self.weights,
            "seeds": self.seeds,
            "engine": self.engine,
        }
        asked_at = get_current_context()["dag_run"].run_after.isoformat()
        return tasks.policy_backtest(
            dsn=access["dsn"], extras=access["extras"], **request, asked_at=asked_at, params=_given(params)
        )


def _listed(names: Sequence[str] | str | None) -> list[str] | str | None:
    """As the form takes it; what comes from a mapped task is a sequence of Airflow's own."""
    return names if names is None or isinstance(names, str) else list(names)


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was not given, of which the form has its own."""
    return {name: value for name, value in params.items() if value is not None}
