"""A consumer as a separate process that acknowledges nothing; SIGTERM interrupts it at any place, and it closes.

`python -m tests.support.unsettled_consumer NAME URL TOPIC ADDRESSES TOKEN CLOSE_SECONDS`. It prints a line for each event.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.devstack.process import ChildProcess

_ROOT = Path(__file__).resolve().parents[2]
CALL_SECONDS = 120.0
"""A worker that is stopped is waited for longer than the test lasts."""


def unsettled_consumer(
    name: str, url: str, topic: str, *addresses: str, log: Path, close_seconds: float
) -> ChildProcess:
    """Return the process, which is not started."""
    from controller.devstack.serving import token_for

    arguments = [name, url, topic, ",".join(addresses), token_for(topic), str(close_seconds)]
    return ChildProcess(
        [sys.executable, "-m", "tests.support.unsettled_consumer", *arguments], log=log, cwd=_ROOT
    )


def main() -> None:
    """Receive messages until SIGTERM, which raises SystemExit at any place; then close the consumer. Prints `received` for each batch,
    and `closing`.
    """
    name, url, topic, addresses, token, close_seconds = sys.argv[1:]
    servers = Servers(addresses.split(","), token, call_timeout_seconds=CALL_SECONDS)
    consumer = StreamConsumer(servers, EmbeddedLogClient(url), topic, "billing", name)

    def say(what: str) -> None:
        sys.stdout.write(f"{what}\n")
        sys.stdout.flush()

    def interrupt(_number: int, _frame: object) -> None:
        raise SystemExit(3)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        while True:
            if consumer.receive(0.2) is not None:
                say("received")
    finally:
        say("closing")
        consumer.close(float(close_seconds))


if __name__ == "__main__":
    main()
