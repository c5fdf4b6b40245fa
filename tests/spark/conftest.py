"""One Spark session for all tests here, in this process, ended with its JVM at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.spark_session import local_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this directory needs Java."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic local session."""
    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
