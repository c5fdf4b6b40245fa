"""One classic local Spark session for tests of this process, ended with its JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from controller.devstack.java import java_home
from spark_jobs.session import get_session

MASTER = "local[2]"
LIGHTLY = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For a JVM that lives for a few small jobs: compiled once, quickly, from jars that are trusted."""


@contextmanager
def local_session(home: Path) -> Iterator[SparkSession]:
    """Yield a session, which every request for `MASTER` gets during the block; files go to `home`. The JVM ends with the block.

    Inside another such block, the session of the outer one is yielded and not ended.
    """
    running = SparkContext._active_spark_context
    if running is not None:
        yield SparkSession(running)
        return
    os.environ.setdefault("JAVA_HOME", str(java_home(home)))
    session = get_session(
        MASTER,
        {
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": LIGHTLY,
            "spark.local.dir": str(home),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
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
        SparkContext._gateway = SparkContext._jvm = None  # else the next session asks the JVM that has ended
