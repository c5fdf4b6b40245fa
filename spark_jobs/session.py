"""A Spark session for the master in SPARK_MASTER: local[n], spark://host:port, yarn, k8s://, or sc:// (Connect).

A Connect session has a fixed id for its settings and is never stopped. The server keeps the session warm from run to
run, and no session is left behind each minute. Other settings have another session, because settings stay in force as
long as the session. The server permanently refuses a session that was ended; then the next id is used.

The JVM of a classic session is started here, and its output is recorded, because PySpark reports only that the JVM ended.
The output is still forwarded to standard error; the last lines are kept in addition.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from controller.domain.errors import InvalidInput, Retryable, Terminal

if TYPE_CHECKING:
    import pyarrow as pa


_KEPT_LINES: Final = 20
_MOST_CHARACTERS: Final = 300
_OUTPUT_SECONDS: Final = 5.0
_STANDARD_ERROR: Final = 2
_TOO_OLD: Final = "UnsupportedClassVersionError"
_ROUTINE_LINES: Final = ("WARNING: Using incubator modules", "NOTE: Picked up", "Picked up ")


class JavaOutput:
    """A pipe for the output of Java. The constructor starts a thread that forwards all lines to standard error, and keeps
    the last 20. Java writes to the descriptor `pipe`, of which the caller closes its own copy.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        read_from, self.pipe = os.pipe()
        self._thread = threading.Thread(
            target=self._forward, args=(read_from,), name="java-output", daemon=True
        )
        self._thread.start()

    def line(self) -> str:
        """Return the last 20 lines, without empty and routine lines, joined to one line; empty without output. Waits up to 5 s until all
        writers have closed the pipe.
        """
        self._thread.join(_OUTPUT_SECONDS)
        lines = [*self._lines]  # a child of Java may still write to the pipe
        return " / ".join(line for line in lines if line and not line.startswith(_ROUTINE_LINES))

    def _forward(self, read_from: int) -> None:
        """Forward lines to standard error until all writers have closed the pipe, and keep the last lines. `read_from`: descriptor of the
        pipe's other end, which is closed afterwards.
        """
        with open(read_from, "rb") as stream:
            for line in stream:
                self._lines.append(line.decode(errors="replace").strip())
                with contextlib.suppress(OSError):  # standard error may be closed
                    os.write(_STANDARD_ERROR, line)


def start_jvm(settings: SparkConf) -> None:
    """Start this process's JVM with these settings. Does nothing, and ignores the settings, if the process has a JVM
    already. The JVM's output goes to standard error.

    Raises Terminal if there is no Java or Java is too old; Retryable, with Java's last lines, if Java started and
    ended; and PySpark's other errors unchanged. After an error the call may be repeated. The function holds PySpark's
    lock, so concurrent calls wait.
    """
    with SparkContext._lock:
        if SparkContext._gateway is not None:
            return
        output = JavaOutput()
        try:
            gateway = launch_gateway(settings, {"stdout": output.pipe, "stderr": output.pipe})
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            ended: BaseException = error
        else:
            SparkContext._ensure_initialized(gateway=gateway)
            return
        finally:
            os.close(output.pipe)
        raise _start_error(output.line()) from ended


def _start_error(output: str) -> Terminal | Retryable:
    """Return the error of a failed start: Terminal if no Java is found (`JAVA_HOME`, otherwise the path) or `output` says that Java is too
    old; otherwise Retryable (after 10 s), with the first 300 characters of `output`: Java ended, for example for lack of memory.
    `output`: Java's last lines, not shortened.
    """
    home = os.environ.get("JAVA_HOME")
    if shutil.which(os.path.join(home, "bin", "java") if home else "java") is None or _TOO_OLD in output:
        return Terminal("Spark did not start: it needs Java 17 or newer; install Java and set JAVA_HOME")
    detail = output[:_MOST_CHARACTERS] or "no output"
    return Retryable(
        f"Spark's Java ended at its start: {detail}; check the free memory and Spark's settings", 10.0
    )


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
    "spark.sql.shuffle.partitions": "8",  # the default of 200 would create 200 tiny tasks on a few cores
}
_ENDED = ("SESSION_CLOSED", "SESSION_CHANGED", "SESSION_NOT_FOUND")
_LOST_STATUSES = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
"""Names of the gRPC status codes of a server that does not answer."""
_LOST = (
    "ExecutorLostFailure",
    "FetchFailedException",
    "SparkContext was shut down",
    "[RETRIES_EXCEEDED]",  # a server that does not answer, to PySpark 4.0
    *(f"StatusCode.{name}" for name in _LOST_STATUSES),  # likewise
)
_NO_ANSWER = re.compile(r"An error occurred while calling \S+")
"""Py4J's whole text for a call whose connection broke."""
_NO_SPARK = "none"
"""Value of SPARK_MASTER without Spark, as in `controller.spark_requirements`, which the jobs may not import."""
_MASTERS = ("local", "spark://", "yarn", "k8s://")
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_ANSWERS_WITHIN_SECONDS = 5.0
_SESSION_IDS_TRIED = 20
_RETRIES = 4
"""Number of retries of a call to a Connect server, some seconds in total. The client's own default continues for ten
minutes.
"""
_CONNECTED: dict[tuple[str, str], SparkSession] = {}
"""The process's Connect sessions, by master and settings (`_text`)."""

Answer = TypeVar("Answer")


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return the table as a DataFrame with the table's schema, which Connect cannot infer from an empty table."""
    return spark.createDataFrame(table, from_arrow_schema(table.schema))


def session_id(master: str, conf: Mapping[str, str], number: int = 0) -> UUID:
    """Return the fixed session id for the Connect server of `master` and the settings `conf`: the same in every
    process, and another id for each `number`.
    """
    return uuid5(NAMESPACE_URL, f"cleave/load-aggregation/{_address(master)}/{number}/{_text(conf)}")


def _text(conf: Mapping[str, str]) -> str:
    """Return the settings as text, the same for equal settings in any order."""
    return json.dumps(conf, sort_keys=True)


def _address(master: str) -> str:
    """Return host and port of the Connect server of `master`, without its parameters, which may have a token."""
    return master.removeprefix("sc://").partition("/")[0].partition(";")[0].rpartition("@")[2]


def get_session(master: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the Spark session for `master`, which is created on first use. `conf` adds to the built-in settings of a
    new session, or overrides them.

    A process has one classic session. Later calls return this session even for another master, and apply the settings
    that can still be changed. For a local master the environment variable PYSPARK_PYTHON is set, unless it is set
    already. A classic session starts a JVM in this process.

    Over Connect (`sc://`), `conf` can have settings of the session, but not settings of the server. Calls with the same
    master and settings get the same session, also in other processes; calls with other settings get another session.

    Raises InvalidInput for a master of a wrong form, and for a setting or a value that an existing classic session or
    a Connect server does not allow; a new classic session checks a value only when the value is used. Raises
    Retryable if no server answers, or if Java or a classic session does not start, also because of a wrong option of
    Java. Raises Terminal if there is no Java for Spark, or if the Connect server has ended too many sessions.
    """
    if master.startswith("sc://"):
        return _connect(master, dict(conf or {}))
    _check(master)
    # PySpark keeps this variable after any use of Connect in the process, and then refuses every other master.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    local = _LOCAL if master.startswith("local") else {}
    if local:  # Python workers use this interpreter, not the first on PATH
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = SparkConf().setMaster(master).setAppName("cleave-load-aggregation")
    settings.setAll(list({**_CLASSIC, **local, **_ALWAYS, **(conf or {})}.items()))
    start_jvm(settings)
    try:
        return SparkSession.builder.config(conf=settings).getOrCreate()
    except IllegalArgumentException as error:
        raise InvalidInput(f"Spark at {master} refuses a setting: {str(error).splitlines()[0]}") from error
    except Py4JError as error:
        cause = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        raise Retryable(
            f"cannot create a Spark session at {master}: {cause.splitlines()[0]}; check that the cluster is running, and its settings",
            10.0,
        ) from error


def _check(master: str) -> None:
    """Check `master`, the master of a classic session, so that a problem is reported within seconds and in one line,
    instead of by Spark after a minute. Return if no problem is found. Only the addresses of a `spark://` master are
    contacted.

    Raises InvalidInput for a master that does not begin with `local`, `spark://`, `yarn` or `k8s://`; for `yarn` if
    neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set; and for an address of a `spark://` master that is not
    `host:port`. A `spark://` master may list several addresses, separated by commas, which are tried in their order
    until one accepts a connection; an attempt to connect ends after 5 s. The addresses after the one that accepts are
    not checked at all. Raises Retryable if no address accepts a connection.
    """
    if master == _NO_SPARK:
        raise InvalidInput(
            f"SPARK_MASTER is {_NO_SPARK}, but this computation needs Spark, as the aggregation of bundles always does; "
            "set SPARK_MASTER to local[n], spark://host:port, yarn, k8s://... or sc://host:port"
        )
    if not master.startswith(_MASTERS):
        raise InvalidInput(
            f"SPARK_MASTER {master!r} is not a master; use local[n], spark://host:port, yarn, k8s://... or sc://host:port"
        )
    if master == "yarn" and not any(os.environ.get(name) for name in _HADOOP):
        raise InvalidInput(
            f"SPARK_MASTER yarn needs the cluster's configuration; set {' or '.join(_HADOOP)} to its directory"
        )
    if master.startswith("spark://") and not any(
        map(_accepts_connections, master.removeprefix("spark://").split(","))
    ):
        raise Retryable(
            f"no Spark master answers at {master}; check that it is running and that the address is correct",
            10.0,
        )


def _accepts_connections(address: str) -> bool:
    """Return True if a server accepts connections at the address, `host:port`, within 5 s; False also if the host is unknown. Raises
    InvalidInput for another form of address, but not for a port that is out of range.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN_SECONDS):
            return True
    except ValueError:
        raise InvalidInput(
            f"SPARK_MASTER spark://{address} has no valid address; use spark://host:port"
        ) from None
    except OSError:
        return False


def with_session(
    master: str, act: Callable[[SparkSession], Answer], conf: Mapping[str, str] | None = None
) -> Answer:
    """Call `act` with the session for `master`, and return the result of `act`. If `act` raises an error because a
    Connect server has ended the session, `act` is called once more from the beginning, with a new session. `act` must
    therefore be safe to repeat. The session is not closed.

    Raises the errors of `get_session` and of `act`. An error of Spark becomes Retryable if a part of Spark was lost
    (`_is_lost`); an error of the data or of the program stays as it is.
    """
    try:
        with _lost_is_retryable(master):
            return act(get_session(master, conf))
    except PySparkException as error:
        if not (master.startswith("sc://") and _is_ended(error)):
            raise
        _CONNECTED.pop((master, _text(conf or {})), None)
    with _lost_is_retryable(master):
        return act(get_session(master, conf))


@contextmanager
def _lost_is_retryable(master: str) -> Iterator[None]:
    """Raise Retryable (after 10 s) for an error of the block after which a part of Spark is lost. Other errors stay."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        if not _is_lost(error):
            raise
        place = _address(master) if master.startswith("sc://") else master
        detail = " ".join(_without_stack(error).split())[:_MOST_CHARACTERS]
        raise Retryable(
            f"Spark at {place} failed during the computation: {detail}; check that its machines run and have enough "
            "memory",
            10.0,
        ) from error


def _connect(master: str, conf: dict[str, str]) -> SparkSession:
    """Return a session of the Connect server at `master`. If this process has a session for the master and these
    settings that is not stopped, this session is returned.

    Otherwise a client is created for the session with the first fixed id (`session_id`). If the server has ended the
    session with this id, the next id is tried. The settings `conf` are applied, and the session is kept for later
    calls. The environment variable GRPC_ENABLE_FORK_SUPPORT is set to 0, unless it is set already.

    Raises InvalidInput for an invalid address and for a setting that the server refuses; Retryable if the server does
    not answer; and Terminal if the server has ended the sessions of all 20 ids.
    """
    # gRPC would restart its threads in every forked child. PySpark forks to start the JVM of a classic session, and
    # these threads can crash the child before it becomes the JVM.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    cached = _CONNECTED.get(place := (master, _text(conf)))
    if cached is not None and not cached.is_stopped:  # type: ignore[attr-defined]  # only Connect's class has the attribute
        return cached
    base = master.rstrip("/")
    for number in range(_SESSION_IDS_TRIED):
        parameters = f";session_id={session_id(master, conf, number)}"
        parameters += "" if ";user_id=" in base else ";user_id=cleave"
        with _demanding_address(master):
            session = ConnectSession.builder.remote(base + ("" if ";" in base else "/") + parameters).create()
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
        try:
            for key, value in {**_ALWAYS, **conf}.items():
                session.conf.set(key, value)
        except (AnalysisException, IllegalArgumentException) as error:
            raise InvalidInput(
                f"Spark Connect at {_address(master)} refuses a setting: {str(error).splitlines()[0]}"
            ) from error
        except PySparkException as error:
            if not _is_ended(error):
                session.release_session_on_close = False  # the server does not answer
                session.stop()
                raise Retryable(
                    f"Spark Connect at {_address(master)} does not answer; check that it is running and "
                    "that the token is correct",
                    10.0,
                ) from error
            continue
        _CONNECTED[place] = session  # type: ignore[assignment]  # another class with the same interface
        return _CONNECTED[place]
    raise Terminal(
        f"the Connect server at {_address(master)} ended {_SESSION_IDS_TRIED} sessions of Cleave; "
        "restart the server, and do not call stop() on these sessions"
    )


@contextmanager
def _demanding_address(master: str) -> Iterator[None]:
    """Raise InvalidInput for a ValueError of the block: PySpark cannot read the address. PySpark's text may have the token, so the message
    does not repeat it.
    """
    try:
        yield
    except ValueError as error:
        raise InvalidInput(
            f"{_address(master)} is no address of a Spark Connect server; write it as sc://host:port"
        ) from error


def _is_lost(error: PySparkException | Py4JError | ConnectionError) -> bool:
    """Return True if the error says that the Connect server, the process's JVM or an executor does not answer, or that
    Spark was shut down, so that the same computation may succeed later. False for errors of the data or of the program.
    """
    # A call after the end of the JVM raises an error of the network, or an error without details.
    if isinstance(error, Py4JNetworkError | ConnectionError) or _NO_ANSWER.fullmatch(str(error)):
        return True
    status = getattr(error, "getGrpcStatusCode", None)  # only errors of Connect have it, from PySpark 4.1 on
    if status is not None and status().name in _LOST_STATUSES:
        return True
    return any(mark in _without_stack(error) for mark in _LOST)


def _without_stack(error: Exception) -> str:
    """Return the error's text without the JVM's stack trace."""
    return str(error).partition("JVM stacktrace:")[0]


def _is_ended(error: PySparkException) -> bool:
    """Return True if the error says that the Connect server has ended the session."""
    return any(mark in str(error) for mark in _ENDED)
