"""The demo's stack before anything runs: what its processes inherit, and addresses as libpq reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.demo import stack
from controller.demo.stack import CADENCE, LOGINS, Stack
from controller.settings import Settings


def test_settings_of_another_cleave_airflow_or_spark_are_not_inherited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CLEAVE_DATABASE_URL", "AIRFLOW_HOME", "SPARK_MASTER"):
        monkeypatch.setenv(name, "somebody else's")
    monkeypatch.setenv("EDITOR", "ed")

    inherited = stack._inherited()

    assert not [name for name in inherited if name.startswith(("CLEAVE_", "AIRFLOW_", "SPARK_"))]
    assert inherited["EDITOR"] == "ed"


def test_an_address_loses_its_driver_and_nothing_else() -> None:
    url = "postgresql+psycopg2://a:postgresql%2Bpsycopg2@h:5/d"

    assert stack._libpq(url) == "postgresql://a:postgresql%2Bpsycopg2@h:5/d"
    assert stack._libpq("postgresql://a@h/d") == "postgresql://a@h/d"


def test_each_login_has_a_role_and_a_password_of_its_own(tmp_path: Path) -> None:
    first, second = Stack(tmp_path, print), Stack(tmp_path, print)

    passwords = [*first._passwords.values(), *second._passwords.values()]
    assert len(set(passwords)) == 2 * len(LOGINS)
    assert len(set(LOGINS.values())) == len(LOGINS)


def test_the_demos_cadence_is_made_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    of_dags = {"CLEAVE_AGGREGATION_SECONDS", "CLEAVE_MERGE_PASS_SECONDS"}
    names = {f"CLEAVE_{name}".upper() for name in Settings.model_fields}
    for name, value in CADENCE.items():
        monkeypatch.setenv(name, value)

    assert set(CADENCE) - names == of_dags
    assert Settings(_env_file=None).rate_window_seconds == 10.0  # type: ignore[call-arg]
