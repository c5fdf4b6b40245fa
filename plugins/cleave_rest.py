"""Cleave's REST API, served by Airflow's API server below `/cleave-rest` for Airflow's own users.

The routes are those of `cleave serve` for people, including Pulsar's admin API; consumers and brokers call a
worker. Airflow decides on the rights. A user who may see plugins may read. A user who may trigger the
operators' DAGs has the rights of an operator. A user who may also trigger the administrators' DAGs has all
rights. Airflow imports this module in every process, so nothing is built before the first call.
"""

from __future__ import annotations

import functools
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/cleave-rest"
MOST_AT_ONCE = 100
"""Largest number of calls that are served at the same time."""
_OPERATOR_DAGS = (
    "cleave_approve",
    "cleave_manual_merge",
    "cleave_manual_rebucket",
    "cleave_manual_split",
    "cleave_policy",
    "policy_backtest",
    "policy_promote",
    "policy_propose",
)
"""DAGs whose actions an operator may perform over HTTP."""
_ADMIN_DAGS = (
    *_OPERATOR_DAGS,
    "cleave_cluster_policy",
    "cleave_create_subscription",
    "cleave_create_topic",
    "cleave_delete_topic",
    "cleave_set_subscription",
    "bundle_policy",
    "bundle_approve",
    "bundle_split",
    "bundle_unload",
)
"""DAGs whose actions an administrator may perform over HTTP; includes those of operators."""
_READING_METHODS = ("GET", "HEAD")


@functools.cache
def _calls() -> Any:
    """Return the app of the REST API, which is built at the first call. Each call gets the rights of the user of Airflow."""
    from cleave_dags import reachable
    from starlette.concurrency import run_in_threadpool

    from controller.pages.context import PageContext
    from controller.pages.mounted_services import ContextServices
    from controller.web.access import grant_of_user
    from controller.web.app import app_for_people

    services = ContextServices(PageContext(reachable))

    async def grant(request: Any) -> Any:
        user = await _user_of(request)
        await services.refresh()
        return await run_in_threadpool(grant_of_user, user.get_name(), functools.partial(_may, user))

    return app_for_people(services, grant, most_at_once=MOST_AT_ONCE)


async def _user_of(request: Any) -> Any:
    """Return the user of Airflow's token. A browser's cookie is accepted for reading only, so that another site cannot use it to change
    something.

    Raises AccessDenied without a token or for a token that Airflow refuses, TokenOutOfTime for an expired one.
    """
    import jwt
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN

    from controller.domain.errors import AccessDenied, TokenOutOfTime

    kind, _, token = (request.headers.get("authorization") or "").partition(" ")
    if kind.lower() != "bearer":
        token = request.cookies.get(COOKIE_NAME_JWT_TOKEN, "") if request.method in _READING_METHODS else ""
    if not token:
        raise AccessDenied(
            "no token; send the header Authorization: Bearer with a token of Airflow (POST /auth/token)"
        )
    try:
        return await get_auth_manager().get_user_from_token(token.strip())
    except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError) as error:
        raise TokenOutOfTime(
            f"Airflow refuses the token because of its time ({error}); request a new token"
        ) from None
    except jwt.InvalidTokenError as error:
        raise AccessDenied(f"Airflow does not know the token ({error}); request a new token") from None


def _may(user: Any, right: Any) -> bool:
    """Return True if Airflow lets the user perform actions that require the right: to see plugins for READ, otherwise to trigger every
    DAG of operators or, for ADMINISTER, of administrators.
    """
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import (
        AccessView,
        DagAccessEntity,
        DagDetails,
    )

    from controller.actions.rights import Right

    manager = get_auth_manager()
    if right is Right.READ:
        return bool(manager.is_authorized_view(access_view=AccessView.PLUGINS, user=user))
    return all(
        manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag_id), user=user
        )
        for dag_id in (_ADMIN_DAGS if right is Right.ADMINISTER else _OPERATOR_DAGS)
    )


async def calls(scope: Any, receive: Any, send: Any) -> None:
    """Serve a call of the REST API (ASGI). The app is built at the first call."""
    await _calls()(scope, receive, send)


class CleaveRest(AirflowPlugin):
    """Registers the REST API with Airflow."""

    name = "cleave_rest"
    fastapi_apps = [{"app": calls, "url_prefix": PREFIX, "name": "Cleave over HTTP"}]
