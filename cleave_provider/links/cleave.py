"""Links from a task to the page of its result, in Cleave's pages in Airflow (`plugins/cleave_pages.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from cleave_provider.airflow_compatibility import AIRFLOW

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PLUGIN, WITHIN = "plugin/cleave", "cleave"
"""Airflow's own route of the pages, and the prefix of their app within the frame."""
OPERATION_KEY = "operation_id"
"""Name of the XCom with the operation's id."""


class OperationLink(BaseOperatorLink):
    """Link to the operation; to the actions of the run if the task ended without an operation."""

    name = "Operation in Cleave"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  # Airflow's signature
        """Return the address of the operation's page. If the task stored no operation's id, return the
        address of the page with the actions of the run.
        """
        operation_id = _pushed(ti_key, OPERATION_KEY)
        if operation_id is None:
            return page("run", dag_id=ti_key.dag_id, run_id=ti_key.run_id)
        return page("operation", operation_id=operation_id)


class PolicyLink(BaseOperatorLink):
    """Link to the level's parameters and their sources."""

    name = "Policy in Cleave"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  # Airflow's signature
        """Return the address of the page about the policy at the operator's level; default: the cluster."""
        return page("policy", level=getattr(operator, "level", "cluster"))


class BacktestLink(BaseOperatorLink):
    """Link to the comparison of the policies; to all backtests if the task ended without a backtest."""

    name = "Backtest in Cleave"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  # Airflow's signature
        """Return the address of the backtest's page. If the task returned no backtest, return the address of
        the list of backtests.
        """
        run = _pushed(ti_key, "return_value") or {}
        return page("backtest", run_id=run["run_id"]) if "run_id" in run else page("backtests")


def page(name: str, **query: Any) -> str:
    """Return the address of a page of Cleave in this Airflow. `query` are the parameters of the page."""
    from airflow.configuration import conf

    plugin = f"{str(conf.get('api', 'base_url', fallback='/')).rstrip('/')}/{PLUGIN}"
    path = f"{name}?{urlencode(query)}" if query else name
    if AIRFLOW < (3, 2):  # only a query may follow the name of a plugin; the pages read the query
        return f"{plugin}?{urlencode({'at': f'/{path}'})}"
    return f"{plugin}/{WITHIN}/{path}"


def _pushed(ti_key: TaskInstanceKey, key: str) -> Any:
    """Return the value of the task's XCom `key`; None if there is none."""
    from airflow.sdk.execution_time.xcom import XCom

    return XCom.get_value(ti_key=ti_key, key=key)
