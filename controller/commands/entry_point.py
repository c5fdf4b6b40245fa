"""Entry point of the command `cleave`: the command line, or a message about the missing extra."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exits with a message if the package is installed without the extra `server`."""
    try:
        from controller.commands.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"the command needs the extra `server` ({error}); run pip install 'pulsar-cleave[server]'")
    run()
