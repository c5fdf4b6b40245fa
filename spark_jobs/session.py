"""A Spark session for whatever SPARK_MASTER says: local[n], spark://host:port, yarn, k8s://, or sc:// (Connect).

A Connect session has a fixed id and is never stopped: the server keeps it warm from run to run, and no session is
left behind each minute. A session somebody else ended is refused for ever, so then the next id is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from controller.domain.errors import InvalidInput, Retryable, Terminal

_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
}
_CLASSIC = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
_LOCAL = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",  # the default of 200 is 200 tiny tasks on a few cores
}
_ENDED = ("SESSION_CLOSED", "SESSION_CHANGED", "SESSION_NOT_FOUND")
_MASTERS = ("local", "spark://", "yarn", "k8s://")
_SESSION_IDS_TRIED = 20
_RETRIES = 4
"""Of a call to a Connect server, some seconds in all: the client's own default goes on for ten minutes."""
_CONNECTED: dict[str, SparkSession] = {}

Answer = TypeVar("Answer")


def session_id(master: str, number: int = 0) -> UUID:
    """The fixed session id for a Connect server: the same in every process, another for each ``number``."""
    return uuid5(NAMESPACE_URL, f"cleave/load-aggregation/{urlsplit(master).netloc}/{number}")


def get_session(master: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session for ``master``, made on first use. ``conf`` adds to or overrides the built-in settings.

    Over Connect, only settings of the session can be given; those of the server are the server's. Raises
    InvalidInput for a master that is none, Retryable when the server does not answer, Terminal without Java.
    """
    if master.startswith("sc://"):
        return _connect(master, dict(conf or {}))
    if not master.startswith(_MASTERS):
        raise InvalidInput(f"SPARK_MASTER {master!r}: use local[n], spark://host:port or sc://host:port")
    # pyspark leaves this behind once anything in the process has used Connect, and then refuses every other master
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    local = _LOCAL if master.startswith("local") else {}
    builder = SparkSession.builder.master(master).appName("cleave-load-aggregation")
    for key, value in {**_CLASSIC, **local, **_ALWAYS, **(conf or {})}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise Terminal(
            "Spark did not start: it needs Java 17 or newer; install one and set JAVA_HOME"
        ) from error


def with_session(
    master: str, act: Callable[[SparkSession], Answer], conf: Mapping[str, str] | None = None
) -> Answer:
    """What ``act`` returns, run on the session for ``master``; once more on the next one if it was ended."""
    try:
        return act(get_session(master, conf))
    except PySparkException as error:
        if not (master.startswith("sc://") and _was_ended(error)):
            raise
        _CONNECTED.pop(master, None)
    return act(get_session(master, conf))


def _connect(master: str, conf: dict[str, str]) -> SparkSession:
    """The session of this process, else a new client of the fixed session: with the next id if that was ended."""
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    known = _CONNECTED.get(master)
    if known is not None and not known.is_stopped:  # type: ignore[attr-defined]  # Connect's own class has it
        return known
    base = master.rstrip("/")
    for number in range(_SESSION_IDS_TRIED):
        parameters = f";session_id={session_id(master, number)};user_id=cleave"
        session = ConnectSession.builder.remote(base + ("" if ";" in base else "/") + parameters).create()
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
        try:
            for key, value in {**_ALWAYS, **conf}.items():
                session.conf.set(key, value)
        except PySparkException as error:
            if not _was_ended(error):
                session.release_session_on_close = False  # there is nobody to tell
                session.stop()
                raise Retryable(
                    f"Spark Connect at {urlsplit(master).netloc} does not answer: see that it is up and its token right",
                    10.0,
                ) from error
            continue
        _CONNECTED[master] = session  # type: ignore[assignment]  # the same interface, a class of its own
        return _CONNECTED[master]
    raise Terminal(
        f"the Connect server at {urlsplit(master).netloc} ended {_SESSION_IDS_TRIED} sessions of Cleave: "
        "restart it, and let nobody stop() them"
    )


def _was_ended(error: PySparkException) -> bool:
    return any(mark in str(error) for mark in _ENDED)
