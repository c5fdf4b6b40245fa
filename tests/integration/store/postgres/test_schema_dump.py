"""sql/schema.sql is what the migrations build, and a difference is shown."""

from __future__ import annotations

import pytest

from controller.store.postgres import schema_dump
from controller.store.postgres.migrations import sql_directory


def test_the_file_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails: python -m controller.store.postgres.schema_dump."""
    assert schema_dump.main(["--check"]) == 0, capsys.readouterr().err


def test_drift_is_shown_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    present = (sql_directory() / "schema.sql").read_text()
    monkeypatch.setattr(schema_dump, "generate", lambda: present + "CREATE TABLE cleave.more ();\n")

    assert schema_dump.main(["--check"]) == 1
    assert "+CREATE TABLE cleave.more ();" in capsys.readouterr().err
