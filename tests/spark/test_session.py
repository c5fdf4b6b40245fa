"""A JVM that does not come up: what is told of it, from a process that has none yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from controller.devstack.java import java_home
from controller.domain.errors import InvalidInput
from spark_jobs.session import get_session

_ASK = """
import sys
from controller.domain.errors import CleaveError
from spark_jobs.session import get_session
try:
    get_session("local[1]", {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": sys.argv[1]})
except CleaveError as error:
    print(type(error).__name__, error, end="")
"""


def session_error(home: Path, options: str = "") -> tuple[str, str]:
    """What asking for a session with that Java raised, and what stood on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK, options],
        env={**os.environ, "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def test_a_java_that_ended_at_its_start_is_tried_again_and_what_it_printed_is_told(tmp_path: Path) -> None:
    error, printed = session_error(java_home(tmp_path), "-Xms400g")  # more than there is for it
    assert error.startswith("Retryable Spark's Java ended at its start: ")
    assert "heap" in error
    assert "heap" in printed, "it is passed on as well"


def test_without_a_java_there_is_nothing_to_try_again(tmp_path: Path) -> None:
    error, _ = session_error(tmp_path)
    assert error.startswith("Terminal Spark did not start: it needs Java 17 or newer")


def test_an_old_java_is_known_by_any_of_its_last_lines(tmp_path: Path) -> None:
    """The first lines alone fill a message."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        f"#!/bin/sh\necho {'warning' * 60}\necho java.lang.UnsupportedClassVersionError\nexit 1\n"
    )
    java.chmod(0o755)
    error, _ = session_error(tmp_path)
    assert error.startswith("Terminal Spark did not start: it needs Java 17 or newer")


def test_a_value_that_a_setting_does_not_allow_is_invalid_input(spark: SparkSession) -> None:
    """It escaped as an exception of PySpark, of many lines."""
    with pytest.raises(
        InvalidInput, match=r"^Spark at local\[1\] refuses a setting: .*shuffle.partitions"
    ) as raised:
        get_session("local[1]", {"spark.sql.shuffle.partitions": "many"})
    assert len(str(raised.value).splitlines()) == 1
    assert spark.conf.get("spark.sql.shuffle.partitions") != "many"


@pytest.mark.parametrize(
    "master",
    ["sc://host:abc", "sc://host:70000", "sc://host:15002/db", "sc://[host", "sc://host:abc;token=s3cret"],
)
def test_an_address_that_no_connect_server_has_is_invalid_input_without_its_token(master: str) -> None:
    with pytest.raises(InvalidInput, match=r"^\[?host(:\w+)? is no address of a Spark Connect server"):
        get_session(master, {})
