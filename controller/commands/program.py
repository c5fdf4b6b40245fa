"""What the command `cleave` starts: the command line, or what is to be installed for it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exits with a message if the package is installed as applications need it, without the extra `server`."""
    try:
        from controller.commands.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(
            f"the command needs more than an application ({error}); run pip install 'pulsar-cleave[server]'"
        )
    run()
