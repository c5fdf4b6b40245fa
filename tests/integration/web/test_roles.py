"""Each role at each route of a real worker: what it may ask is answered, and everything else is denied.

The routes are the app's own, so one that is added without a right, or without a line here, fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from fastapi.routing import APIRoute

from controller.actions.rights import Right
from controller.devstack.postgres import PostgresServer
from controller.devstack.serving import serving_leader, token_for, token_of
from controller.web.access import Role
from controller.web.app import routed_app
from controller.web.route_rights import rights_of

MAY: dict[Right, set[str]] = {
    Right.LOOK_UP: {"client", "reader", "operator", "stranger", "admin"},
    Right.CONSUME: {"client"},
    Right.READ: {"reader", "operator", "stranger", "admin"},
    Right.OPERATE: {"operator", "admin"},
    Right.ADMINISTER: {"admin"},
    Right.WRITE_LOAD: {"broker"},
}
"""Who may what; `stranger` is the operator of another namespace."""
TOKENS = {
    "client": token_for("topic://acme/shop/*"),
    "reader": token_of(Role.READER),
    "operator": token_of(Role.OPERATOR, "acme/shop"),
    "stranger": token_of(Role.OPERATOR, "acme/stock"),
    "admin": token_of(Role.ADMIN),
    "broker": token_of(Role.BROKER),
}
CLIENTS = "/api/v1/topics/{tenant}/{namespace}/{topic}"
BUNDLES = "/api/v1/namespaces/{tenant}/{namespace}/bundles"
SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}"
SEGMENT = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"
NAMED = {
    "tenant": "acme",
    "namespace": "shop",
    "topic": "none",
    "subscription": "billing",
    "consumer": "a",
    "descriptor": "0000-ffff-0",
}
"""What stands in a path; the topic does not exist, so that nothing is changed."""


DECLARED = {
    (method, route.path): rights_of(route)
    for route in routed_app().routes
    if isinstance(route, APIRoute)
    for method in route.methods
}
"""The rights that each route of the app demands."""
RIGHTS: dict[tuple[str, str], Right] = {
    ("GET", f"{CLIENTS}/layout"): Right.LOOK_UP,
    ("GET", f"{CLIENTS}/layout/watch"): Right.LOOK_UP,
    ("GET", "/api/v1/namespaces/{tenant}/{namespace}/topics"): Right.LOOK_UP,
    ("GET", "/api/v1/namespaces/{tenant}/{namespace}/topics/watch"): Right.LOOK_UP,
    ("GET", f"{CLIENTS}/segments"): Right.LOOK_UP,
    ("GET", f"{CLIENTS}/data-plane"): Right.LOOK_UP,
    ("GET", f"{CLIENTS}/subscriptions/{{subscription}}/dead-letter-log"): Right.CONSUME,
    ("POST", f"{CLIENTS}/key-counts"): Right.CONSUME,
    ("POST", f"{CLIENTS}/suspects"): Right.CONSUME,
    ("GET", f"{CLIENTS}/subscriptions/{{subscription}}/queue"): Right.CONSUME,
    ("POST", f"{CLIENTS}/subscriptions/{{subscription}}/queue/drained"): Right.CONSUME,
    ("GET", f"{CLIENTS}/subscriptions/{{subscription}}/why"): Right.LOOK_UP,
    ("GET", f"{CLIENTS}/subscriptions/{{subscription}}/lag"): Right.LOOK_UP,
    **{
        (method, f"{CLIENTS}/subscriptions/{{subscription}}/consumers/{{consumer}}{act}"): Right.CONSUME
        for method, act in (
            ("POST", ""),
            ("GET", "/assignment"),
            ("DELETE", ""),
            *(
                ("POST", f"/{name}")
                for name in (
                    "pulse",
                    "reasons",
                    "released",
                    "drained",
                    "opened",
                    "closed",
                    "deliveries",
                    "dead-letters",
                )
            ),
        )
    },
    ("GET", SCALABLE): Right.READ,
    ("PUT", f"{SCALABLE}/{{topic}}"): Right.ADMINISTER,
    ("GET", f"{SCALABLE}/{{topic}}"): Right.READ,
    ("DELETE", f"{SCALABLE}/{{topic}}"): Right.ADMINISTER,
    ("GET", f"{SCALABLE}/{{topic}}/stats"): Right.READ,
    ("GET", f"{SCALABLE}/{{topic}}/segments/{{segment_id}}/stats"): Right.READ,
    ("POST", f"{SCALABLE}/{{topic}}/migrate"): Right.ADMINISTER,
    ("POST", f"{SCALABLE}/{{topic}}/split/{{segment_id}}"): Right.OPERATE,
    ("POST", f"{SCALABLE}/{{topic}}/merge/{{first_id}}/{{second_id}}"): Right.OPERATE,
    ("POST", f"{SCALABLE}/{{topic}}/rebucket/{{segment_id}}"): Right.OPERATE,
    **{
        (method, path): right
        for path in (
            f"{SCALABLE}/{{topic}}/autoScalePolicy",
            "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy",
        )
        for method, right in (("GET", Right.READ), ("POST", Right.OPERATE), ("DELETE", Right.OPERATE))
    },
    **{
        (method, f"{SCALABLE}/{{topic}}/subscriptions/{{subscription}}{act}"): Right.ADMINISTER
        for method, act in (("PUT", ""), ("DELETE", ""), ("POST", "/seek"), ("POST", "/skip-all"))
    },
    **{
        (method, f"{SEGMENT}{act}"): Right.ADMINISTER
        for method, act in (
            ("PUT", ""),
            ("DELETE", ""),
            ("POST", "/terminate"),
            *(
                (method, f"/subscription/{{subscription}}{act}")
                for method, act in (("PUT", ""), ("DELETE", ""), ("POST", "/seek"), ("POST", "/skip-all"))
            ),
        )
    },
    ("GET", f"{SEGMENT}/subscription/{{subscription}}/backlog"): Right.READ,
    **{
        ("GET", f"/api/v1/{path}"): Right.READ
        for path in (
            "topics",
            "namespaces",
            "fleet",
            "decisions",
            "decisions/{decision_id}",
            "decisions/{decision_id}/inputs",
            "ledger",
            "refusals",
            "operations",
            "operations/{operation_id}",
            "operations/{operation_id}/steps",
            "approvals",
            "approvals/{approval_id}",
            "backtests",
            "backtests/{run_id}",
            "backtests/{run_id}/results",
            "bundles",
            "bundles/brokers",
            "bundles/brokers/active",
            "bundles/cycles/{cycle_id}",
            "bundles/merges",
            "bundles/of-topic",
            "bundles/proposals",
            "policies/candidates",
            "policies/history",
            "policies/cluster",
        )
    },
    ("GET", CLIENTS): Right.READ,
    **{
        ("GET", f"{CLIENTS}/{path}"): Right.READ
        for path in (
            "subscriptions",
            "subscriptions/{subscription}/cursors",
            "assignments",
            "buckets",
            "hot-keys",
            "overview",
            "refusals",
            "decisions/inputs",
            "layout/changes",
            "layout/metadata",
            "segments/history",
            "segments/{segment_id}/lineage",
            "load",
            "load/history",
            "policy",
        )
    },
    **{
        ("POST", f"/api/v1/approvals/{level}/{answer}"): Right.ADMINISTER
        if level == "cluster"
        else Right.OPERATE
        for level in ("cluster", "namespaces/{tenant}/{namespace}", "topics/{tenant}/{namespace}/{topic}")
        for answer in ("approve", "reject")
    },
    ("POST", f"{CLIENTS}/decide"): Right.READ,
    ("POST", f"{CLIENTS}/situations"): Right.READ,
    **{("POST", f"{CLIENTS}/{act}"): Right.OPERATE for act in ("split", "merge", "rebucket", "recut")},
    ("POST", "/api/v1/backtests/topics/{tenant}/{namespace}/{topic}"): Right.OPERATE,
    ("POST", "/api/v1/backtests/namespaces/{tenant}/{namespace}"): Right.OPERATE,
    ("POST", "/api/v1/backtests/cluster"): Right.ADMINISTER,
    ("POST", f"{CLIENTS}/candidate"): Right.OPERATE,
    ("DELETE", f"{CLIENTS}/candidate"): Right.OPERATE,
    ("POST", f"{CLIENTS}/candidate/promote"): Right.OPERATE,
    **{
        (method, path): right
        for path in (
            "/api/v1/policies/namespaces/{tenant}/{namespace}",
            "/api/v1/policies/topics/{tenant}/{namespace}/{topic}",
        )
        for method, right in (("GET", Right.READ), ("POST", Right.OPERATE), ("DELETE", Right.OPERATE))
    },
    ("POST", "/api/v1/policies/cluster"): Right.ADMINISTER,
    ("DELETE", "/api/v1/policies/cluster"): Right.ADMINISTER,
    **{("POST", f"{CLIENTS}/{act}"): Right.ADMINISTER for act in ("adopt", "attach", "detach", "recover")},
    ("PUT", CLIENTS): Right.ADMINISTER,
    ("DELETE", CLIENTS): Right.ADMINISTER,
    **{
        (method, f"{CLIENTS}/subscriptions/{{subscription}}{act}"): Right.ADMINISTER
        for method, act in (
            ("PUT", ""),
            ("DELETE", ""),
            ("POST", "/seek"),
            ("DELETE", "/seek"),
            ("POST", "/sharing"),
            ("GET", "/dead-letters"),
            ("POST", "/dead-letters/redrive"),
        )
    },
    ("GET", f"{BUNDLES}/policy"): Right.READ,
    **{
        ("POST", path): Right.ADMINISTER
        for path in (
            f"{BUNDLES}/policy",
            f"{BUNDLES}/mode",
            f"{BUNDLES}/{{bundle}}/split",
            f"{BUNDLES}/{{bundle}}/unload",
        )
    },
    ("GET", "/api/v1/audit"): Right.ADMINISTER,
    ("POST", "/api/v1/load/samples"): Right.WRITE_LOAD,
}
"""What each route is for."""


@pytest.fixture(scope="module")
def http(postgres_server: PostgresServer, migrated_template: str) -> Iterator[httpx.Client]:
    """A client of a worker with nothing in its database."""
    name = "cleave_roles"
    url = postgres_server.create_database(name, template=migrated_template)
    with serving_leader(url) as address, httpx.Client(base_url=address, timeout=30.0) as http:
        yield http
    postgres_server.drop_database(name)


def test_each_route_declares_the_right_that_it_is_for() -> None:
    assert {route: [right] for route, right in RIGHTS.items()} == DECLARED


@pytest.mark.parametrize(("method", "path"), DECLARED, ids=str)
def test_each_role_gets_what_it_may_and_nothing_else(http: httpx.Client, method: str, path: str) -> None:
    named = re.sub(r"{(\w+?)(:\w+)?}", lambda found: NAMED.get(found[1], "7"), path)
    answers = {
        name: status(http, method, named, {"Authorization": f"Bearer {token}"})
        for name, token in TOKENS.items()
    }

    allowed = {name for name, answer in answers.items() if answer not in (401, 403)}
    assert allowed == MAY[RIGHTS[method, path]], answers
    assert {answers[name] for name in TOKENS.keys() - allowed} <= {403}
    assert status(http, method, named, {}) == 401
    assert 500 not in answers.values()


def status(http: httpx.Client, method: str, path: str, headers: dict[str, str]) -> int:
    """Of an answer that may be a stream without an end. What would make a topic is only rehearsed, or asks for 0 segments."""
    asked = {"numInitialSegments": 0, "dry_run": True}
    with http.stream(method, path, headers=headers, params=asked) as answer:
        return answer.status_code
