"""The reference is what the code says."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path

import pytest

import pulsar_cleave
from controller.domain import errors
from controller.domain.decision import RefusalReason
from controller.domain.policy import PARAMETERS
from controller.settings import Settings
from docs.reference import generate
from docs.reference.pages import advice, model, reasons


@pytest.mark.parametrize("page", generate.PAGES)
def test_each_page_is_up_to_date(page: str) -> None:
    """If not: python -m docs.reference.generate"""
    assert (generate.HERE / page).read_text() == generate.render(page)


def test_each_parameter_setting_and_reason_is_there() -> None:
    assert set(model.PARAMETERS) == set(PARAMETERS)
    settings_page = generate.render("settings.md")
    assert [name for name in Settings.model_fields if name.upper() not in settings_page] == []
    reasons_page = generate.render("reasons.md")
    kinds = (RefusalReason, *(kind for kind, *_ in reasons.BUNDLES))
    assert [one for kind in kinds for one in kind if f"| `{one.value}` |" not in reasons_page] == []


def test_each_error_that_the_client_raises_is_exported() -> None:
    root = generate.HERE.parents[1]
    files = [*(root / "controller/client").glob("*.py"), *(root / "pulsar_cleave").glob("*.py")]
    files += [
        *(root / "controller/dataplane/pulsar").glob("*.py"),
        *(root / "controller/dataplane/embedded").glob("*.py"),
    ]
    calls = [
        node.func.id
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    kept_inside = {"AlreadyStored"}
    raised = {name for name in calls if name in vars(errors)} - kept_inside
    raised = {name for name in raised if _is_error(vars(errors)[name])}
    assert raised - set(pulsar_cleave.__all__) == set()


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, errors.CleaveError)


def test_each_public_field_of_the_client_is_there() -> None:
    page = generate.render("client.md")
    kinds = (getattr(pulsar_cleave, name) for name in pulsar_cleave.__all__)
    for kind in filter(is_dataclass, kinds):
        section = page.partition(f"\n## {kind.__name__}\n")[2].partition("\n## ")[0]
        assert [one.name for one in fields(kind) if f"| `{one.name}` |" not in section] == [], kind


@pytest.mark.parametrize(
    ("kind", "what"),
    [(RefusalReason, advice.TOPICS), *((kind, what) for kind, _, _, what in reasons.BUNDLES)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_reason_says_what_to_do(kind: type[StrEnum], what: Mapping[str, str]) -> None:
    assert [one.value for one in kind if len(what.get(one.value, "")) < len("Nothing.")] == []


def test_a_page_that_is_out_of_date_is_found_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "HERE", tmp_path)
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0

    (tmp_path / "policy.md").write_text("what somebody thinks")

    assert generate.main(["--check"]) == 1
    assert "docs/reference/policy.md is not what the code says" in capsys.readouterr().err
    assert (tmp_path / "policy.md").read_text() == "what somebody thinks"
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
