"""Pulsar's own Java client of scalable topics, run inside this process, because no Python client supports them.

`open_v5_client` starts the JVM, which a process can do once, with the jars of the 5.0.0-M1 broker. The client's
threads are not daemons, so end the process with `os._exit`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controller.devstack.java import java_home
from controller.devstack.pulsar.jars import PULSAR_5, pulsar_jars


def open_v5_client(service_url: str, directory: Path, *, heap: str = "256m") -> tuple[Any, Any]:
    """Return the package `org.apache.pulsar.client.api.v5` and a client; Java strings are returned as `str`.

    A process can call this once. Java logs to this process's standard output. Raises DevstackFailed if there is no
    Java, and the errors of `pulsar_jars`.
    """
    import jpype

    library = next(java_home(directory).rglob("libjvm.so"))
    jars = str(pulsar_jars(PULSAR_5) / "*")
    jpype.startJVM(str(library), f"-Xmx{heap}", classpath=[jars], convertStrings=True)
    v5 = jpype.JPackage("org").apache.pulsar.client.api.v5
    return v5, v5.PulsarClient.builder().serviceUrl(service_url).build()
