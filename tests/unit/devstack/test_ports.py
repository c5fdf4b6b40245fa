"""Free ports: unclaimed by others, not listening, and never given twice."""

from __future__ import annotations

import socket
import subprocess
import sys

from controller.devstack import ports


def test_a_port_is_given_once_until_it_is_released() -> None:
    given = [ports.free_port() for _ in range(50)]
    try:
        assert len(set(given)) == 50
    finally:
        for port in given:
            ports.release_port(port)


def test_parallel_processes_never_get_the_same_port() -> None:
    program = (
        "from controller.devstack.ports import free_port; print([free_port() for _ in range(300)]); input()"
    )
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    given: list[int] = []
    for process in crowd:
        assert process.stdout is not None
        given += [int(part) for part in process.stdout.readline().strip("[]\n").split(",")]
    for process in crowd:
        process.communicate("\n")

    assert len(given) == 900
    assert len(set(given)) == len(given)


def test_a_listening_port_is_seen() -> None:
    with socket.socket() as server:
        server.bind((ports.LOOPBACK, 0))
        server.listen()
        port = server.getsockname()[1]
        assert ports.is_listening(port)
    assert not ports.is_listening(port)


def test_releasing_a_port_nobody_claimed_is_no_error() -> None:
    ports.release_port(1)
