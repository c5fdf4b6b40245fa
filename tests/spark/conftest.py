"""One Spark session for all tests here, in this process, ended with its JVM at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from controller.devstack.java import java_home
from spark_jobs.session import get_session


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
    home = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("JAVA_HOME", str(java_home(home)))
    session = get_session(
        "local[2]",
        {
            "spark.driver.memory": "1g",
            "spark.local.dir": str(home),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.sql.shuffle.partitions": "4",
            "spark.log.level": "ERROR",
        },
    )
    gateway = session.sparkContext._gateway
    yield session
    session.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends when its standard input does
        gateway.proc.wait(30)
