"""Links from a task to the page of what it asked for, in Cleave's pages in Airflow (`plugins/cleave_pages.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from cleave_provider.versions import AIRFLOW

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PLUGIN, WITHIN = "plugin/cleave", "cleave"
"""Airflow's own route of the pages, and the prefix of its app within the frame."""
OPERATION_KEY = "operation_id"
"""Name of the XCom with the operation's id."""


class OperationLink(BaseOperatorLink):
    """To the operation; to what the run did, where the task ended before it had one."""

    name = "Operation in Cleave"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  # Airflow's signature
        """See the class."""
        operation_id = _pushed(ti_key, OPERATION_KEY)
        if operation_id is None:
            return page("run", dag_id=ti_key.dag_id, run_id=ti_key.run_id)
        return page("operation", operation_id=operation_id)


class PolicyLink(BaseOperatorLink):
    """To the level's parameters and where each comes from."""

    name = "Policy in Cleave"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  # Airflow's signature
        """See the class."""
        return page("policy", level=getattr(operator, "level", "cluster"))


class BacktestLink(BaseOperatorLink):
    """To the policies side by side; to all backtests, where the task ended before it had one."""

    name = "Backtest in Cleave"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  # Airflow's signature
        """See the class."""
        run = _pushed(ti_key, "return_value") or {}
        return page("backtest", run_id=run["run_id"]) if "run_id" in run else page("backtests")


def page(name: str, **query: Any) -> str:
    """Address of a page of Cleave in this Airflow."""
    from airflow.configuration import conf

    plugin = f"{str(conf.get('api', 'base_url', fallback='/')).rstrip('/')}/{PLUGIN}"
    place = f"{name}?{urlencode(query)}" if query else name
    if AIRFLOW < (3, 2):  # nothing may follow the name of a plugin there but a query, which the pages read
        return f"{plugin}?{urlencode({'at': f'/{place}'})}"
    return f"{plugin}/{WITHIN}/{place}"


def _pushed(ti_key: TaskInstanceKey, key: str) -> Any:
    from airflow.sdk.execution_time.xcom import XCom

    return XCom.get_value(ti_key=ti_key, key=key)
