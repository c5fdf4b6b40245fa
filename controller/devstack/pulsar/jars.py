"""The jars of a Pulsar version, fetched once with Maven and kept in a cache every project directory shares.

A directory in the cache is whole or absent: Maven fills a draft, which is then renamed, and processes that ask at the
same time wait for the one that fetches. The pom's text is part of the directory's name, so a changed pom fetches anew.
`java_server` and its users know what to run from the jars.
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
from controller.system_java import system_java_home

PULSAR_4: Final = "4.2.4"
PULSAR_5: Final = "5.0.0-M1"
VERSIONS: Final = (PULSAR_4, PULSAR_5)
_FETCH_TIMEOUT_SECONDS: Final = 1800.0
_LOG_LEVEL: Final = re.compile(r"^\[ERROR\]\s*")


class MavenMissing(DevstackFailed):
    """There is no `mvn` to fetch a broker with, and none is in the cache."""


def cache_directory() -> Path:
    """Where fetched files are kept: `CLEAVE_CACHE_DIR`, else `cleave` in the user's XDG cache."""
    named = os.environ.get("CLEAVE_CACHE_DIR")
    if named:
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").resolve() / "cleave"


def pulsar_jars(version: str = PULSAR_4) -> Path:
    """A directory with the broker of `version` and all it needs (about 240 MB); fetched at first use.

    With 5.0.0-M1 comes the Java client of scalable topics. Raises MavenMissing, or DevstackFailed where Java is missing
    or the fetch fails.
    """
    pom = _pom(version)
    shelf = cache_directory() / "pulsar"
    jars = shelf / f"{version}-{hashlib.sha256(pom).hexdigest()[:12]}"
    if not jars.is_dir():
        maven = maven_command()
        shelf.mkdir(parents=True, exist_ok=True)
        with file_lock(shelf / f"{jars.name}.lock"):
            if not jars.is_dir():  # another process may have fetched it while we waited
                _fetch(maven, pom, jars)
    return jars


def maven_command() -> str:
    """The path of `mvn`; MavenMissing says how to get it."""
    command = shutil.which("mvn")
    if command is None:
        raise MavenMissing(
            "no Maven here, and a Pulsar broker is fetched with it: apt install maven (or put mvn on PATH)"
        )
    return command


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Holds `path` against every other process; freed by the kernel if this one dies."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _pom(version: str) -> bytes:
    if version not in VERSIONS:
        raise DevstackFailed(f"no Pulsar {version!r} is known here; the versions are {', '.join(VERSIONS)}")
    return files("controller.devstack.pulsar").joinpath("poms", version, "pom.xml").read_bytes()


def _fetch(maven: str, pom: bytes, jars: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=jars.parent) as name:
        draft = Path(name)
        (draft / "pom.xml").write_bytes(pom)
        command = [
            maven,
            *("--quiet", "--batch-mode", "dependency:copy-dependencies", "-DincludeScope=runtime"),
            *("-Dstyle.color=never", f"-DoutputDirectory={draft / 'jars'}"),
        ]
        try:
            done = subprocess.run(
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
                f"Maven had not fetched {jars.name} after {_FETCH_TIMEOUT_SECONDS:g} s: try again, "
                "it goes on from what is in its own cache"
            ) from error
        if done.returncode != 0:
            raise DevstackFailed(f"Maven could not fetch {jars.name}: {_first_error(done.stdout)}")
        if not any((draft / "jars").glob("pulsar-broker-*.jar")):
            raise DevstackFailed(f"Maven fetched {jars.name} without a broker in it: {done.stdout.strip()}")
        (draft / "jars").rename(jars)


def _maven_environment(draft: Path) -> dict[str, str]:
    """The environment of this process, with a Java for Maven where the machine has none."""
    if system_java_home() is not None:
        return dict(os.environ)
    return {**os.environ, "JAVA_HOME": str(java_home(draft))}


def _first_error(output: str) -> str:
    """The first of Maven's lines of errors, which says what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line]
    return _LOG_LEVEL.sub("", (errors or lines or ["it said nothing"])[0])
