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
from tests.support.bundle_desk import NAMESPACE, TOPICS, PageContext, bundle_desk

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
_BLOCK = re.compile(r"^```(sh|sql)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def desk(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[PageContext]:
    with bundle_desk(database, tmp_path, capsys, monkeypatch) as desk:
        desk.uneven()
        for name in TOPICS:
            desk.bench.cluster.publish(name)
        yield desk


def _follow(desk: PageContext, page: str) -> list[str]:
    """Types every command; asks every query as the inspector. Returns what was typed."""
    typed = []
    for kind, body in _BLOCK.findall((HOW_TO / page).read_text()):
        if kind == "sh":
            for line in body.splitlines():
                name, *arguments = shlex.split(line)
                assert name == "cleave", line
                desk.cleave.ok(*arguments)
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


def test_the_page_on_splitting_does_what_it_says(desk: PageContext) -> None:
    assert len(_follow(desk, "split-bundles.md")) == 10

    assert desk.cleave.json("bundles", "policy", NAMESPACE)["overrides"] == {"cooldown_seconds": 600}
    bundles = desk.bench.cluster.lists[NAMESPACE]
    alone = bundles.bundle_of(TOPICS[0])
    assert (alone.width, bundles.count) == (1, 5)  # a half cut in two, and the topic cut out of the other


def test_the_page_for_the_night_answers(desk: PageContext) -> None:
    assert len(_follow(desk, "bundle-questions-at-night.md")) == 8


def test_names_of_pulsar_s_first_version_are_refused_as_the_page_says(desk: PageContext) -> None:
    for words in (
        ("hash", "persistent://property/cluster/namespace/topic"),
        ("split", "property/cluster/namespace/LARGEST"),
        ("unload", "property/cluster/namespace/0x00000000_0x80000000"),
    ):
        assert "tenant/namespace" in desk.cleave.refused("bundles", *words)
