"""`python -m controller.devstack.pulsar DIRECTORY`: a Pulsar for experiments, until SIGTERM or Ctrl-C.

Writes `DIRECTORY/env`, which a shell can source for PULSAR_ADMIN_URL and PULSAR_SERVICE_URL; data and ports stay in
DIRECTORY for the next start. `--brokers 2` serves a cluster instead of a single process. Binds loopback only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from controller.devstack.pulsar.cluster import LoadManager, PulsarCluster
from controller.devstack.pulsar.jars import PULSAR_4, VERSIONS
from controller.devstack.pulsar.java_server import Jvm
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.devstack.running import serve_until_signal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a Pulsar in the directory until SIGTERM or SIGINT, which this process blocks. Return 0, or 1 if it did not start.

    Writes `DIRECTORY/env` once Pulsar is healthy, and removes the file at the end.
    """
    options = _parser().parse_args(arguments)
    directory = options.directory.resolve()
    return serve_until_signal(directory / "env", lambda: _server(options, directory), _description)


def _description(server: PulsarStandalone | PulsarCluster) -> tuple[str, str]:
    """Return the exports of the server's addresses, and the beginning of the line that names their file."""
    exports = (
        f"export PULSAR_ADMIN_URL='{server.admin_url}'\nexport PULSAR_SERVICE_URL='{server.service_url}'\n"
    )
    return exports, f"Pulsar {server.version} runs at {server.admin_url}; its addresses are"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m controller.devstack.pulsar",
        description="Run a Pulsar for experiments, until SIGTERM or Ctrl-C.",
    )
    parser.add_argument("directory", type=Path, help="directory of the server's data")
    parser.add_argument("--version", choices=VERSIONS, default=PULSAR_4)
    parser.add_argument(
        "--brokers", type=int, help="number of brokers of a cluster; default: one process without a cluster"
    )
    parser.add_argument("--load-manager", choices=[m.name.lower() for m in LoadManager], default="modular")
    parser.add_argument(
        "--heap", default="512m", help="heap of each Java process, as 512m or 2g; default: 512m"
    )
    parser.add_argument(
        "--quick", action="store_true", help="reduce the work of the start at the cost of throughput"
    )
    return parser


def _server(options: argparse.Namespace, directory: Path) -> PulsarStandalone | PulsarCluster:
    """Return the server that the options describe, not started: one process, or a cluster if a number of brokers is
    given.
    """
    jvm = Jvm(heap=options.heap, quick_start=options.quick)
    if options.brokers is None:
        return PulsarStandalone(directory, options.version, jvm=jvm)
    return PulsarCluster(
        directory,
        options.version,
        brokers=options.brokers,
        load_manager=LoadManager[options.load_manager.upper()],
        jvm=jvm,
    )


if __name__ == "__main__":
    sys.exit(main())
