"""Spark or the SQL engine, by what there is on this machine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from controller.services.load_aggregation.aggregation import choose_engine
from controller.store.postgres.engine import Store


@pytest.fixture
def has_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))


@pytest.fixture
def has_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def chosen(master: str) -> str:
    """The name of the engine; the store is never connected to."""
    return choose_engine(master, {}, Store("postgresql+psycopg2://nobody@localhost/nothing")).name


@pytest.mark.usefixtures("has_java")
def test_spark_computes_where_it_can_run() -> None:
    assert chosen("local[2]") == "spark"


@pytest.mark.usefixtures("has_no_java")
@pytest.mark.parametrize(("master", "engine"), [("local[2]", "sql"), ("sc://spark:15002", "spark")])
def test_only_a_connect_server_needs_no_java_here(master: str, engine: str) -> None:
    assert chosen(master) == engine


@pytest.mark.usefixtures("has_java")
def test_postgresql_computes_where_the_settings_ask_for_it() -> None:
    assert chosen("none") == "sql"


@pytest.mark.usefixtures("has_java")
@pytest.mark.parametrize("master", ["local[2]", "sc://spark:15002"])
def test_postgresql_computes_where_pyspark_is_missing(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name == "pyspark" else found(name, package),
    )
    assert chosen(master) == "sql"


@pytest.mark.usefixtures("has_java")
@pytest.mark.parametrize("master", ["local[2]", "sc://spark:15002"])
def test_the_client_of_spark_connect_alone_is_not_enough(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pyspark-client` is a package `pyspark` without `pyspark.core`, and without Py4J."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    assert chosen(master) == "sql"
