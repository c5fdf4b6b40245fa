"""Operators: the actions of Cleave's own forms, as tasks of users' DAGs.

A task stands for one request: a retried or cleared task gets the operation of its first attempt. A request
that cannot succeed fails at once with one line. A request that may succeed later is tried again after the
delay of the error.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import get_current_context

from cleave_provider.failures import with_airflow_errors
from cleave_provider.hooks.cleave import CleaveHook
from cleave_provider.links.cleave import OPERATION_KEY, BacktestLink, OperationLink, PolicyLink
from cleave_provider.operators.retried import RetriedOperator
from cleave_provider.request_key import request_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink
    from airflow.sdk.definitions.context import Context
    from pydantic.fields import FieldInfo


class CleaveOperator(RetriedOperator):
    """Base class of the operators. A subclass calls a function of `controller.tasks`."""

    ui_color = "#d7f0ea"

    def __init__(self, *, cleave_conn_id: str = CleaveHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cleave_conn_id = cleave_conn_id

    @with_airflow_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Return the document of the task's function. If the document is an operation, the XCom
        `operation_id` has its id.
        """
        document = self.ask(self.hook.access(), request_of(context))
        if OPERATION_KEY in document:
            context["ti"].xcom_push(key=OPERATION_KEY, value=document[OPERATION_KEY])
        return document

    @property
    def hook(self) -> CleaveHook:
        """Hook of the connection, created for each use: no connection is looked up while DAGs are parsed."""
        return CleaveHook(self.cleave_conn_id)

    @abstractmethod
    def ask(self, access: dict[str, Any], request: dict[str, str]) -> dict[str, Any]:
        """Call the function of `controller.tasks`, and return its document. `access` has `dsn` and `extras`
        of the connection, `request` has `request_key` and `actor`.
        """


class ActionOperator(CleaveOperator):
    """An action as a task. Its arguments are the fields of the action's request; all of them are templates.

    :param timeout_seconds: seconds that one attempt waits. The operation continues in any case, and a retry
        waits for the same operation.
    :param dry_run: log what would happen, return it as XCom, and change nothing.
    """

    action: ClassVar[str]
    """Name of the action, as in the command `cleave`."""
    operator_extra_links: Collection[BaseOperatorLink] = (OperationLink(),)

    def __init_subclass__(cls, *, action: str, **kwargs: Any) -> None:
        """Take template fields, docstring and arguments of the subclass from the request of the action
        `action`.
        """
        from controller.actions.action import find_action

        super().__init_subclass__(**kwargs)
        request = find_action(action).request
        cls.action, cls.template_fields = action, tuple(request.model_fields)
        cls.__doc__ = request.__doc__
        cls.__init__ = _init_with(cls, request.model_fields)  # type: ignore[method-assign]

    def __init__(self, *, timeout_seconds: float = 60, dry_run: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.timeout_seconds = timeout_seconds
        self.is_dry_run = dry_run  # `dry_run` is a method of every operator

    def ask(self, access: dict[str, Any], request: dict[str, str]) -> dict[str, Any]:
        """Perform the action with the fields that were given, or its dry run if the task is a dry run, and return
        the document of the result. `timeout_seconds` is passed only to an action that waits for its operation.
        """
        from controller import tasks
        from controller.actions.action import find_action

        params = _given({name: _plain(getattr(self, name)) for name in self.template_fields})
        options: dict[str, Any] = {"dry_run": self.is_dry_run}
        if find_action(self.action).is_waited_for:
            options["timeout_seconds"] = self.timeout_seconds
        return tasks.perform(
            self.action,
            **access,
            request_key=request["request_key"],
            actor=request["actor"],
            params=params | options,
        )


def _init_with(cls: type[ActionOperator], fields: Mapping[str, FieldInfo]) -> Callable[..., None]:
    """Return an `__init__` whose signature has the fields, because Airflow reads the arguments of an operator
    from its signature.
    """

    def init(self: ActionOperator, **kwargs: Any) -> None:
        values = {name: kwargs.pop(name, None) for name in fields}
        super(cls, self).__init__(**kwargs)
        for name, value in values.items():
            setattr(self, name, value)

    parameters = [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY),
        *(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.is_required() else None,
            )
            for name, field in fields.items()
        ),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
    init.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return init


class SplitSegmentOperator(ActionOperator, action="segments split"):
    """Split a segment. The docstring of the request describes the arguments."""


class MergeSegmentsOperator(ActionOperator, action="segments merge"):
    """Merge two segments. The docstring of the request describes the arguments."""


class RebucketSegmentOperator(ActionOperator, action="segments rebucket"):
    """Rebucket a segment. The docstring of the request describes the arguments."""


class SetAutoScalePolicyOperator(ActionOperator, action="policy set"):
    """Set parameters of a policy. The docstring of the request describes the arguments."""

    template_fields_renderers: ClassVar[dict[str, str]] = {"parameters": "json"}
    operator_extra_links = (PolicyLink(),)


class BacktestOperator(CleaveOperator):
    """Simulate what policies would have cost on recorded load. Changes only the list of backtests.

    :param policies: `in-force` (each topic's own), `adaptive`, `pip483`, with parameters such as
        `adaptive:target_use=0.8`; a list, or one text with commas, spaces or line breaks. Default: these
        three.
    :param topics: names, in the same form. Without topics and namespace, all topics are simulated.
    :param since: an instant, or a duration before the request: `12h`, `7d`.
    :param until: the end, in the same form. None: the time of the request.
    :param weights: weights of the cost, such as `excess=20,change_seconds=60`.
    :param seeds: number of random draws of each load.
    :param engine: `spark` or `here`. None: by the amount of work.
    :param spark_conn_id: a connection of type `spark` or `spark_connect`. None: `SPARK_MASTER`.
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
        """Run the backtest and return its document; a repeated request returns the stored results."""
        from controller import tasks

        if self.spark_conn_id is not None:
            access["extras"] |= self.hook.spark_settings(self.spark_conn_id)
        params = {
            "policies": _plain(self.policies),
            "topics": _plain(self.topics),
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


def _plain(value: Any) -> Any:
    """Return a sequence that is not a text as a list, and any other value unchanged. A mapped task passes a
    sequence of Airflow's own.
    """
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are not None. The form has defaults for the others."""
    return {name: value for name, value in params.items() if value is not None}
