"""Spark Connect from the wheel, started for real on each Java there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.devstack import java
from controller.devstack.ports import is_listening
from controller.devstack.spark_connect import SparkConnectServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "kind", [pytest.param("system", marks=pytest.mark.chaos), "bundled"]
)  # tests/spark use the system's
def test_it_answers_who_has_the_token_and_nobody_else(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "bundled":
        monkeypatch.setattr(java, "system_java_home", lambda: None)
    elif java.system_java_home() is None:
        pytest.skip("this machine has no Java of its own")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    with SparkConnectServer(tmp_path / "spark") as server:
        session = SparkSession.builder.remote(server.url).create()
        assert session.range(1000).selectExpr("sum(id) AS total").toArrow().to_pylist() == [
            {"total": 499_500}
        ]
        assert session.conf.get("spark.sql.session.timeZone") == "UTC"
        session.stop()

        with pytest.raises(PySparkException, match=r"(?i)unauthenticated|token"):
            SparkSession.builder.remote(f"{server.url}-wrong").create().range(1).collect()
        port = int(server.url.split(":")[2].split("/")[0])
        assert is_listening(port)

    assert not is_listening(port)
