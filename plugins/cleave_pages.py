"""Cleave's pages in Airflow: an entry of the navigation, and a tab beside each of its DAGs.

Airflow imports this module in every process and asks nobody who calls a plugin's app: so nothing is built here before the
first page is asked for, and every route demands the right to see plugins. What a page asks Airflow to run is a DAG, with
the rights of whoever looks at it.
"""

from __future__ import annotations

import functools
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/cleave"
PLACE = PREFIX.removeprefix("/")
"""From where Airflow is: its base_url may have a path."""


@functools.cache
def _pages() -> Any:
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view
    from cleave_dags import reachable
    from fastapi import Depends

    from controller.pages.app import pages_app
    from controller.pages.desk import Desk

    return pages_app(Desk(reachable), [Depends(requires_access_view(AccessView.PLUGINS))])


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """The app, made at its first call."""
    await _pages()(scope, receive, send)


class CleavePages(AirflowPlugin):
    """What Airflow is told of the pages."""

    name = "cleave_pages"
    fastapi_apps = [{"app": pages, "url_prefix": PREFIX, "name": "Cleave"}]
    external_views = [
        {
            "name": "Cleave",
            "href": f"{PLACE}/",
            "destination": "nav",
            "url_route": "cleave",
            "nav_top_level": True,
        },
        {
            "name": "Cleave",
            "href": f"{PLACE}/run?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "cleave-run",
        },
    ]
