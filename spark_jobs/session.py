"""A Spark session for wherever the job shall run: in this process, on a cluster, or on a warm Connect server.

On a Connect server one session with a fixed id is shared by every run and never stopped: starting one costs seconds,
and a stopped id is refused for ever. When the server forgot it (a restart, an idle time-out) a fresh id is taken.
"""

from __future__ import annotations

import uuid

from pyspark.sql import SparkSession

from controller.domain.errors import InvalidInput, Retryable

SESSION_ID = uuid.uuid5(uuid.NAMESPACE_URL, "cleave/load-aggregation")
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",  # adaptive execution merges what is small; 200 cost more than the work
    "spark.sql.ansi.enabled": "true",
}


def open_session(master: str, application_name: str = "cleave-load-aggregation") -> SparkSession:
    """``local[2]``, ``spark://host:port`` and the like run here; ``sc://host:port`` is Spark Connect.

    Raises InvalidInput for a master that is neither, Retryable when the server does not answer.
    """
    if master.startswith("sc://"):
        return _connect(master)
    if not master.startswith(("local", "spark://", "yarn", "k8s://")):
        raise InvalidInput(f"SPARK_MASTER {master!r}: use local[n], spark://host:port or sc://host:port")
    builder = (
        SparkSession.builder.master(master).appName(application_name).config("spark.ui.enabled", "false")
    )
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _connect(master: str) -> SparkSession:
    from pyspark.errors import PySparkException

    for session_id in (SESSION_ID, uuid.uuid4()):
        url = f"{master}{';' if '/;' in master else '/;'}session_id={session_id};user_id=cleave"
        try:
            session: SparkSession = SparkSession.builder.remote(url).getOrCreate()
            for key, value in SETTINGS.items():
                session.conf.set(key, value)
            return session
        except PySparkException as error:
            if "INVALID_HANDLE" not in str(error):
                raise _away(master, error) from error
        except Exception as error:  # grpc has its own tree of errors
            raise _away(master, error) from error
    raise Retryable(f"Spark Connect at {_place(master)} refuses every session; restart the server", 30.0)


def _away(master: str, error: Exception) -> Retryable:
    return Retryable(
        f"Spark Connect at {_place(master)} does not answer ({type(error).__name__}); see that it is up", 10.0
    )


def _place(master: str) -> str:
    """Host and port: the rest of the URL may hold a token."""
    return master.removeprefix("sc://").split("/", 1)[0]
