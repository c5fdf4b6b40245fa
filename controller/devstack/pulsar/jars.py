"""The jars of a Pulsar version, fetched once with Maven into a cache that all project directories share.

A directory in the cache is complete or absent: Maven fills a draft, which is then renamed, and processes that request
the same version wait for the process that fetches it. The pom's text is part of the directory's name, so a changed
pom is fetched separately. `java_server` and its users select the programs to run from the jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final

from controller.devstack.failure import DevstackFailed
from controller.devstack.java import java_home
from controller.spark_requirements import system_java_home

PULSAR_4: Final = "4.2.4"
PULSAR_5: Final = "5.0.0-M1"
PULSAR_4_OLDEST: Final = "4.0.7"
"""Oldest version on which gates hold. Maven fetches it by the pom of `PULSAR_4`, with another version number."""
VERSIONS: Final = (PULSAR_4, PULSAR_5, PULSAR_4_OLDEST)
_FETCH_TIMEOUT_SECONDS: Final = 1800.0
_LOG_LEVEL: Final = re.compile(r"^\[ERROR\]\s*")


class MavenMissing(DevstackFailed):
    """There is no `mvn` to fetch a broker, and the cache does not contain the broker."""


def cache_directory() -> Path:
    """Return the directory of fetched files: `CLEAVE_CACHE_DIR`, otherwise `cleave` in the user's XDG cache."""
    configured = os.environ.get("CLEAVE_CACHE_DIR")
    if configured:
        return Path(configured).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").resolve() / "cleave"


def pulsar_jars(version: str = PULSAR_4) -> Path:
    """Return the cached directory with the broker of `version` and its dependencies (about 240 MB). The first use fetches it with Maven;
    concurrent calls wait for that.

    5.0.0-M1 includes the Java client of scalable topics. Raises MavenMissing if the version must be fetched without Maven, or
    DevstackFailed if the version is unknown, Java is missing or the fetch fails.
    """
    pom = _pom(version)
    cache = cache_directory() / "pulsar"
    jars = cache / f"{version}-{hashlib.sha256(pom).hexdigest()[:12]}"
    if not jars.is_dir():
        maven = maven_command()
        cache.mkdir(parents=True, exist_ok=True)
        with file_lock(cache / f"{jars.name}.lock"):
            if not jars.is_dir():  # another process may have fetched the version during the wait
                _fetch(maven, pom, jars)
    return jars


def maven_command() -> str:
    """Return the path of `mvn`. Raises MavenMissing, which says how to install it."""
    command = shutil.which("mvn")
    if command is None:
        raise MavenMissing(
            "no Maven here, which is required to fetch a Pulsar broker; run 'apt install maven', or put mvn on PATH"
        )
    return command


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Wait, without a limit, for a lock on `path` against every other process, and hold it; the kernel releases the lock if this process
    ends.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _pom(version: str) -> bytes:
    """Return the text of the pom with which Maven fetches the version. Raises DevstackFailed for an unknown version."""
    if version not in VERSIONS:
        raise DevstackFailed(f"Pulsar {version!r} is unknown; choose one of {', '.join(VERSIONS)}")
    own = PULSAR_4 if version == PULSAR_4_OLDEST else version
    pom = files("controller.devstack.pulsar").joinpath("poms", own, "pom.xml").read_bytes()
    return pom.replace(own.encode(), version.encode())


def _fetch(maven: str, pom: bytes, jars: Path) -> None:
    """Have Maven copy the jars of the pom into a draft, and rename the draft to `jars`. Raises DevstackFailed if Maven
    fails, fetches no broker, or takes longer than `_FETCH_TIMEOUT_SECONDS`.
    """
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=jars.parent) as name:
        draft = Path(name)
        (draft / "pom.xml").write_bytes(pom)
        command = [
            maven,
            *("--quiet", "--batch-mode", "dependency:copy-dependencies", "-DincludeScope=runtime"),
            *("-Dstyle.color=never", f"-DoutputDirectory={draft / 'jars'}"),
        ]
        try:
            result = subprocess.run(
                command,
                cwd=draft,
                env=_maven_environment(draft),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_FETCH_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DevstackFailed(
                f"Maven has not fetched {jars.name} within {_FETCH_TIMEOUT_SECONDS:g} s; try again, "
                "Maven continues with the files in its own cache"
            ) from error
        if result.returncode != 0:
            raise DevstackFailed(f"Maven could not fetch {jars.name}: {_first_error(result.stdout)}")
        if not any((draft / "jars").glob("pulsar-broker-*.jar")):
            raise DevstackFailed(
                f"Maven fetched {jars.name}, which contains no broker: {result.stdout.strip()}"
            )
        (draft / "jars").rename(jars)


def _maven_environment(draft: Path) -> dict[str, str]:
    """Return the environment of this process; if the machine has no Java, with the Java of a wheel for Maven, for which a launcher is
    written below `draft`. Raises DevstackFailed if there is neither.
    """
    if system_java_home() is not None:
        return dict(os.environ)
    return {**os.environ, "JAVA_HOME": str(java_home(draft))}


def _first_error(output: str) -> str:
    """Return the first of Maven's error lines, which gives the cause, without `[ERROR]`; the first line if none is an error line, and a
    sentence if there is no output.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line]
    return _LOG_LEVEL.sub("", (errors or lines or ["Maven printed nothing"])[0])
