"""`cleave token`: what it prints opens the topics that were named, for as long as was said, and nothing else."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime, timedelta

import httpx
import jwt
import pytest

from controller.actions.rights import Right
from controller.devstack.serving import SECRET, serving_leader
from controller.domain.errors import AccessDenied, CleaveError
from controller.web import access
from controller.web.access import Role
from tests.support.command_line import CommandLine


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """That of the workers, in the environment."""
    monkeypatch.setenv("CLEAVE_API_SECRET", SECRET)
    return SECRET


def test_a_worker_takes_it_for_the_topics_that_were_named(
    cleave: CommandLine, orders: str, secret: str
) -> None:
    cleave.ok("topics", "create", "acme/shop/returns")
    named = cleave.ok("token", orders)
    assert named == f"{named.strip()}\n"
    some = cleave.ok("token", "acme/stock/*", "acme/shop/re*")
    url = cleave.store.address.uri

    with serving_leader(url) as address:

        def answer(topic: str, token: str) -> int:
            headers = {"Authorization": f"Bearer {token.strip()}"}
            return httpx.get(f"{address}/api/v1/topics/{topic}/layout", headers=headers).status_code

        assert [answer(topic, named) for topic in (orders, "acme/shop/returns")] == [200, 403]
        assert [answer(topic, some) for topic in (orders, "acme/shop/returns")] == [403, 200]


def test_it_runs_out_when_it_was_said(cleave: CommandLine, secret: str) -> None:
    before = time.time()
    told = cleave.json("token", "orders", "topic://acme/*/*", "--days", "3")

    assert told["topics"] == ["topic://public/default/orders", "topic://acme/*/*"]
    claims = jwt.decode(told["token"], secret, algorithms=["HS256"])
    assert (claims["role"], claims["topics"]) == (Role.CLIENT, told["topics"])
    assert before + 3 * 86_400 - 1 <= claims["exp"] <= time.time() + 3 * 86_400
    shown = datetime.fromisoformat(told["expires_at"])
    assert abs(shown - datetime.fromtimestamp(claims["exp"], UTC)) <= timedelta(seconds=1)


def test_without_the_secret_there_is_none(cleave: CommandLine) -> None:
    assert "CLEAVE_API_SECRET is not set" in cleave.refused("token", "acme/shop/orders")


def test_a_secret_that_could_be_guessed_signs_nothing(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_API_SECRET", secrets.token_hex(8))

    assert "CLEAVE_API_SECRET has 16 characters" in cleave.refused("token", "acme/shop/orders")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["acme/shop/orders", "--days", "0"],
            "Invalid value '0' for '--days': Input should be greater than or equal to 1",
        ),
        (
            ["acme/shop/orders", "--days", "999999999"],
            "Invalid value '999999999' for '--days': Input should be less than or equal to 3660",
        ),
        (["topic://acme/shop"], "'topic://acme/shop' is not a scalable topic"),
        (["kafka://a/b/c"], "is not a scalable topic"),
        ([], "the token names no TOPIC"),
        (["--role", "operator"], "an operator's token names no namespace"),
        (["--role", "operator", "--namespace", "acme"], "'acme' is not a namespace"),
        (["--role", "operator", "--namespace", "acme/shop/orders"], "is not a namespace"),
        (["acme/shop/orders", "--role", "admin"], "a token of role admin takes no topics"),
        (["--role", "reader", "--namespace", "acme/*"], "a token of role reader takes no namespaces"),
        (["acme/shop/orders", "--subject", ""], "'' is no subject"),
        (["acme/shop/orders", "--subject", "a\nb"], "is no subject"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    cleave: CommandLine, secret: str, arguments: list[str], reason: str
) -> None:
    assert reason in cleave.refused("token", *arguments)


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.CLIENT])
def test_a_token_of_another_role_says_who_and_for_what(cleave: CommandLine, secret: str, role: Role) -> None:
    where = ["--namespace", "acme/shop", "--namespace", "stock/*"] if role is Role.OPERATOR else []
    told = cleave.json("token", "--role", role.value, "--subject", "ada", *where)

    grant = access.read(secret, f"Bearer {told['token']}")
    assert (grant.role, grant.subject, grant.topics) == (role, "ada", ())
    assert list(grant.namespaces) == where[1::2] == told["namespaces"]
    assert not grant.may(Right.CONSUME, topic="topic://acme/shop/orders")


def test_a_token_from_before_there_were_roles_is_a_clients(secret: str) -> None:
    claims = {"role": "client", "topics": ["topic://acme/*"], "exp": int(time.time()) + 60}

    grant = access.read(secret, f"Bearer {jwt.encode(claims, secret, algorithm='HS256')}")

    assert (grant.role, grant.subject) == (Role.CLIENT, "client")


@pytest.mark.parametrize(
    "claims",
    [
        {"role": "emperor"},
        {"topics": ["topic://*"]},
        {"role": "client"},
        {"role": "operator"},
        {"role": "client", "topics": "topic://*"},
        {"role": "operator", "namespaces": [1]},
    ],
)
def test_a_token_that_says_too_little_opens_nothing(secret: str, claims: dict[str, object]) -> None:
    signed = jwt.encode({**claims, "exp": int(time.time()) + 60}, secret, algorithm="HS256")

    with pytest.raises(AccessDenied):
        access.read(secret, f"Bearer {signed}")


def test_what_it_signs_with_is_the_workers_secret_alone(cleave: CommandLine, secret: str) -> None:
    signed = cleave.ok("token", "acme/shop/orders").strip()

    with pytest.raises(CleaveError, match="not signed by this installation"):
        access.read(secrets.token_hex(32), f"Bearer {signed}")
    assert access.read(secret, f"Bearer {signed}").topics == ("topic://acme/shop/orders",)
