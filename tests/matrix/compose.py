"""The cell `compose`: docker-compose.yml on an engine.

Where no image registry is reachable, images of the same names are made of Debian's packages (`containers/substitutes.sh`). Images that cannot
be made so, of Grafana and Pulsar, belong to profiles, and the cell leaves them out.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.matrix.environments import PROJECT, ROOM, Skipped, run

BASES = ("python:3.11-slim-bookworm", "postgres:17-bookworm", "prom/prometheus:v3.5.0")
_PROJECT = {"COMPOSE_PROJECT_NAME": os.environ.get("COMPOSE_PROJECT_NAME", "cleave-matrix")}
RECOVERED = ROOM / "compose-recovered.txt"
"""A line for each service that was killed: until all were healthy, and until an aggregation had succeeded, in seconds."""


def prepared() -> dict[str, str]:
    """The command that drives the stack, for the tests; its image is built."""
    if shutil.which("docker") is None or not _succeeds("docker", "version"):
        raise Skipped("no container engine")
    if not _succeeds("docker", "compose", "version"):
        raise Skipped("docker has no plugin compose")
    if any(not _succeeds("docker", "image", "inspect", name) for name in BASES):
        _have_bases()
    command: list[str | Path] = ["docker", "compose", "--env-file", _secrets()]
    run([*command, "build"], env=_PROJECT)
    return {"CLEAVE_TEST_COMPOSE": shlex.join(map(str, command)), **_PROJECT}


def _have_bases() -> None:
    """Pull the images, or make substitutes."""
    if not all(_succeeds("docker", "pull", "--quiet", name) for name in BASES):
        if shutil.which("debootstrap") is None:
            raise Skipped("no image registry is reachable, and there is no debootstrap to make substitutes")
        run([Path(__file__).parent / "containers" / "substitutes.sh"])


def _secrets() -> Path:
    """Secrets of the cell's own, beside a copy of the script that makes them."""
    room = ROOM / "compose"
    made = room / ".env"
    if not made.exists():
        (room / "docker").mkdir(parents=True, exist_ok=True)
        for name in (".env.example", "docker/make-env.sh"):
            shutil.copy(PROJECT / name, room / name)
        run([room / "docker" / "make-env.sh"])
    return made


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
