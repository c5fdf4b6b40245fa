"""A new action is one file, and appears in REST, OpenAPI, command, form and operator."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from controller import tasks
from controller.actions import action as catalogue
from controller.actions.action import all_actions, find_action
from controller.actions.context import Context, Options, command_caller
from controller.actions.perform import perform_in
from controller.bootstrap import application
from controller.commands import actions as commands
from controller.domain.errors import InvalidInput, NotFound
from controller.settings import Settings
from controller.web import actions as web
from tests.unit.actions.greetings import Greet, Greeting

TOPIC = "topic://acme/shop/orders"
PATH = "/api/v1/topics/{tenant}/{namespace}/{topic}/greetings"


@pytest.fixture(autouse=True)
def _only_greetings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(catalogue, "MODULES", {"greetings": ("tests.unit.actions.greetings",)})
    catalogue.actions_of.cache_clear()
    yield
    catalogue.actions_of.cache_clear()


def test_it_is_a_call_with_its_body_and_its_response() -> None:
    described = FastAPI(routes=web.router().routes).openapi()

    call = described["paths"][PATH]["post"]
    body = described["components"]["schemas"]["Greet"]
    assert call["description"] == "Greet a topic."
    assert [one["name"] for one in call["parameters"]][:3] == ["tenant", "namespace", "topic"]
    assert (body["required"], {*body["properties"]}) == (["word"], {"reason", "word", "times"})
    assert call["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Greeting")


def test_it_is_a_command_with_arguments_and_options() -> None:
    app = commands.group("greetings")

    answer = CliRunner().invoke(app, ["--help"])

    for words in (
        "Greet a topic.",
        "TOPIC",
        "WORD",
        "Word of the greeting.",
        "--times",
        "--dry-run",
        "--json",
    ):
        assert words in answer.output


def test_the_command_performs_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def perform(_: object, request: Greet, options: Options) -> Greeting:
        asked.append((request, options))
        return Greeting(text=f"{request.word} {request.topic}")

    monkeypatch.setattr(commands, "perform", perform)
    command = commands.command_of(find_action("greetings send"))

    command(topic="acme/shop/orders", word="hello", times=None, reason=None, dry_run=False, as_json=True)

    [(request, options)] = asked
    assert (request.topic, request.times, request.reason) == (TOPIC, 1, "requested on the command line")
    assert not options.dry_run
    assert json.loads(capsys.readouterr().out) == {"dry_run": False, "text": f"hello {TOPIC}"}


def test_it_is_a_form() -> None:
    fields = tasks.form_fields("greetings send")

    assert list(fields) == ["topic", "reason", "word", "times", "dry_run"]
    assert fields["word"]["description"] == "Word of the greeting."
    assert (fields["times"]["type"], fields["times"]["default"], fields["times"]["maximum"]) == (
        "integer",
        1,
        3,
    )
    assert "default" not in fields["topic"]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"word": "hello"}, "topic: is missing"),
        ({"topic": TOPIC, "word": "much too long"}, "word='much too long': string should have at most 10"),
        ({"topic": TOPIC, "word": "hello", "times": 4}, "times=4: input should be less than or equal to 3"),
        ({"topic": TOPIC, "word": "hello", "tone": 1}, "tone: there is no such parameter; use one of"),
    ],
)
def test_a_wrong_form_is_refused_in_one_line(values: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidInput, match=line.replace("(", r"\(")):
        tasks.perform(
            "greetings send",
            dsn="postgresql://nowhere/x",
            extras={},
            params=values,
            request_key="k",
            actor="ada",
        )


def test_a_dry_run_reaches_the_action() -> None:
    with application(Settings(database_url="postgresql://nowhere/x")) as app:
        context = Context(app, app.store, command_caller(), Options(dry_run=True))
        greeting = perform_in(context, find_action("greetings send"), Greet(topic="orders", word="hello"))

    assert greeting.dry_run
    assert greeting.sentence().endswith("(dry run)")
    assert "topic://public/default/orders" in greeting.text


@pytest.mark.parametrize("name", ["greetings stop", "greetings", ""])
def test_the_catalogue_names_what_is_missing(name: str) -> None:
    assert [action.name for action in all_actions()] == ["greetings send"]
    with pytest.raises(NotFound, match=f"there is no action '{name}'"):
        find_action(name)
