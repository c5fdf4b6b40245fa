"""`python -m controller.devstack.pulsar DIRECTORY`: a Pulsar to try things on, until SIGTERM or Ctrl-C.

Writes `DIRECTORY/env`, which a shell can source for PULSAR_ADMIN_URL and PULSAR_SERVICE_URL; data and ports stay
in DIRECTORY for the next time. `--brokers 2` serves a cluster instead of a single process. Loopback only.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from controller.devstack.pulsar.cluster import LoadManager, PulsarCluster
from controller.devstack.pulsar.jars import PULSAR_4, VERSIONS
from controller.devstack.pulsar.java_server import Jvm
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.domain.errors import CleaveError


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop."""
    asked = _parser().parse_args(arguments)
    directory = asked.directory.resolve()
    # Before anything is up, so that a signal always stops it.
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
    env = directory / "env"
    env.unlink(missing_ok=True)
    try:
        with _server(asked, directory) as server:
            whole = env.with_suffix(".new")
            whole.write_text(
                f"export PULSAR_ADMIN_URL='{server.admin_url}'\n"
                f"export PULSAR_SERVICE_URL='{server.service_url}'\n"
            )
            whole.replace(env)  # who waits for the file finds all of it
            sys.stderr.write(f"Pulsar {server.version} is up at {server.admin_url}; see {env}\n")
            signal.sigwait(stop_signals)
    except CleaveError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        env.unlink(missing_ok=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m controller.devstack.pulsar",
        description="A Pulsar to try things on, until SIGTERM or Ctrl-C.",
    )
    parser.add_argument("directory", type=Path, help="where its data is kept")
    parser.add_argument("--version", choices=VERSIONS, default=PULSAR_4)
    parser.add_argument("--brokers", type=int, help="serve a cluster of so many brokers")
    parser.add_argument("--load-manager", choices=[m.name.lower() for m in LoadManager], default="modular")
    parser.add_argument("--heap", default="512m", help="of each Java process, as 512m or 2g")
    parser.add_argument("--quick", action="store_true", help="start with less work, serve more slowly")
    return parser


def _server(asked: argparse.Namespace, directory: Path) -> PulsarStandalone | PulsarCluster:
    jvm = Jvm(heap=asked.heap, quick_start=asked.quick)
    if asked.brokers is None:
        return PulsarStandalone(directory, asked.version, jvm=jvm)
    return PulsarCluster(
        directory,
        asked.version,
        brokers=asked.brokers,
        load_manager=LoadManager[asked.load_manager.upper()],
        jvm=jvm,
    )


if __name__ == "__main__":
    sys.exit(main())
