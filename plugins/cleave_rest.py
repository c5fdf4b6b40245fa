"""Cleave's calls over HTTP, served by Airflow's own API server below `/cleave-rest`, for Airflow's own users.

The same routes as `cleave serve` has for people, Pulsar's admin API among them; consumers and brokers ask a worker. Who may do
what is Airflow's to say: whoever may see plugins may look; whoever may trigger the DAGs that operators use may do what operators
do, and whoever may trigger the administrators' as well, everything.
Airflow imports this module in every process, so nothing is built before the first call.
"""

from __future__ import annotations

import functools
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/cleave-rest"
MOST_AT_ONCE = 100
_OF_OPERATORS = (
    "cleave_approve",
    "cleave_manual_merge",
    "cleave_manual_rebucket",
    "cleave_manual_split",
    "cleave_policy",
    "policy_backtest",
    "policy_promote",
    "policy_propose",
)
"""DAGs that do what an operator may do over HTTP."""
_OF_ADMINS = (
    *_OF_OPERATORS,
    "cleave_create_topic",
    "cleave_delete_topic",
    "bundle_policy",
    "bundle_approve",
    "bundle_split",
    "bundle_unload",
)
"""And those that do what else an admin may do."""
_LOOKS = ("GET", "HEAD")


@functools.cache
def _calls() -> Any:
    from cleave_dags import reachable

    from controller.pages.desk import Desk
    from controller.pages.mounted import DeskServices, grant_of_user
    from controller.web.app import peoples_app

    services = DeskServices(Desk(reachable))

    async def who(request: Any) -> Any:
        user = await _user_of(request)
        await services.refresh()
        return await grant_of_user(user.get_name(), functools.partial(_may, user))

    return peoples_app(services, who, most_at_once=MOST_AT_ONCE)


async def _user_of(request: Any) -> Any:
    """Whoever holds Airflow's token. A browser's cookie is good for looking only: no other site can have something done with it."""
    import jwt
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN

    from controller.domain.errors import AccessDenied, TokenOutOfTime

    kind, _, token = (request.headers.get("authorization") or "").partition(" ")
    if kind.lower() != "bearer":
        token = request.cookies.get(COOKIE_NAME_JWT_TOKEN, "") if request.method in _LOOKS else ""
    if not token:
        raise AccessDenied("no token; send Authorization: Bearer and a token of Airflow's (POST /auth/token)")
    try:
        return await get_auth_manager().get_user_from_token(token.strip())
    except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError) as error:
        raise TokenOutOfTime(
            f"Airflow refuses the token for its time ({error}); ask it for a new one"
        ) from None
    except jwt.InvalidTokenError as error:
        raise AccessDenied(f"Airflow does not know the token ({error}); ask it for a new one") from None


def _may(user: Any, right: Any) -> bool:
    """Whether Airflow lets them do what takes that right."""
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
        for dag_id in (_OF_ADMINS if right is Right.ADMINISTER else _OF_OPERATORS)
    )


async def calls(scope: Any, receive: Any, send: Any) -> None:
    """The app, made at its first call."""
    await _calls()(scope, receive, send)


class CleaveRest(AirflowPlugin):
    """What Airflow is told of the calls."""

    name = "cleave_rest"
    fastapi_apps = [{"app": calls, "url_prefix": PREFIX, "name": "Cleave over HTTP"}]
