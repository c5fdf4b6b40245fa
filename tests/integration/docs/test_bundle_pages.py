"""The pages on splitting bundles and on bundles at night, typed and asked on two staged brokers and a database."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from controller.postgres.address import DatabaseAddress
from tests.support.bundle_operator import NAMESPACE, TOPICS, BundleOperator, bundle_operator

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
_BLOCK = re.compile(r"^```(sh|sql)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def operator(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BundleOperator]:
    with bundle_operator(database, tmp_path, capsys, monkeypatch) as operator:
        operator.uneven()
        for name in TOPICS:
            operator.bench.cluster.publish(name)
        yield operator


def _follow(operator: BundleOperator, page: str) -> list[str]:
    """Types every command; asks every query as the inspector. Returns what was typed."""
    typed = []
    for kind, body in _BLOCK.findall((HOW_TO / page).read_text()):
        if kind == "sh":
            for line in body.splitlines():
                name, *arguments = shlex.split(line)
                assert name == "cleave", line
                operator.cleave.ok(*arguments)
                typed.append(line)
            continue
        dsn = DatabaseAddress.of(os.environ["CLEAVE_DATABASE_URL"]).uri
        connection = psycopg2.connect(dsn, options="-c role=cleave_inspector")
        try:
            with connection, connection.cursor() as cursor:
                for statement in filter(str.strip, body.split(";")):
                    cursor.execute(statement)
                    assert cursor.description
        finally:
            connection.close()
    return typed


def test_the_page_on_splitting_does_what_it_says(operator: BundleOperator) -> None:
    assert len(_follow(operator, "split-bundles.md")) == 10

    assert operator.cleave.json("bundles", "policy", NAMESPACE)["overrides"] == {"cooldown_seconds": 600}
    bundles = operator.bench.cluster.lists[NAMESPACE]
    alone = bundles.bundle_of(TOPICS[0])
    assert (alone.width, bundles.count) == (1, 5)  # a half cut in two, and the topic cut out of the other


def test_the_page_for_the_night_answers(operator: BundleOperator) -> None:
    assert len(_follow(operator, "bundle-questions-at-night.md")) == 8


def test_names_of_pulsar_s_first_version_are_refused_as_the_page_says(operator: BundleOperator) -> None:
    for words in (
        ("hash", "persistent://property/cluster/namespace/topic"),
        ("split", "property/cluster/namespace/LARGEST"),
        ("unload", "property/cluster/namespace/0x00000000_0x80000000"),
    ):
        assert "tenant/namespace" in operator.cleave.refused("bundles", *words)
