"""Cleave's pages in Airflow: an entry of the navigation, and a tab of each run of Cleave's DAGs.

Airflow imports this module in every process, and does not check the rights of users who call a plugin's app.
So nothing is built before the first page is requested, and every route requires the right to see plugins. If
a page starts work in Airflow, it triggers a DAG with the rights of its user.
"""

from __future__ import annotations

import functools
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/cleave"
RELATIVE_PREFIX = PREFIX.removeprefix("/")
"""Prefix relative to Airflow's root, because Airflow's base_url may have a path."""


@functools.cache
def _pages() -> Any:
    """Return the app of the pages, which is built at the first call. Every route requires the right to see
    plugins.
    """
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view
    from cleave_dags import reachable
    from fastapi import Depends

    from controller.pages.app import pages_app
    from controller.pages.context import PageContext

    return pages_app(PageContext(reachable), [Depends(requires_access_view(AccessView.PLUGINS))])


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """Serve a request to the pages (ASGI). The app is built at the first call."""
    await _pages()(scope, receive, send)


class CleavePages(AirflowPlugin):
    """Registers the pages with Airflow."""

    name = "cleave_pages"
    fastapi_apps = [{"app": pages, "url_prefix": PREFIX, "name": "Cleave"}]
    external_views = [
        {
            "name": "Cleave",
            "href": f"{RELATIVE_PREFIX}/",
            "destination": "nav",
            "url_route": "cleave",
            "nav_top_level": True,
        },
        {
            "name": "Cleave",
            "href": f"{RELATIVE_PREFIX}/run?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "cleave-run",
        },
    ]
