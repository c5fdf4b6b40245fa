"""A disk that is full: the worker says so and goes on when there is room; `cleave doctor` says so, too."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from controller.devstack.accounts import server_account
from controller.devstack.postgres import EmbeddedPostgres
from controller.domain.errors import StoreUnavailable
from controller.services.segment_admin import splitting
from tests.support.bench import Bench
from tests.support.cleave_process import cleave_process
from tests.support.migrated import migrate_to_pip483
from tests.support.scratch import scratch
from tests.support.waiting import wait_until

DISK_BYTES = 64 * 2**20
SEGMENTS = 64
"""Their splits write more steps than fit into the pages that the tables have."""


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk of its own, which PostgreSQL's account may write to."""
    where = scratch(tmp_path_factory, "small-disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(where)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode != 0:
        where.rmdir()
        pytest.skip("a small disk takes the right to mount one: run as root")
    account = server_account()
    if account is not None:
        os.chown(where, account.pw_uid, account.pw_gid)
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)
    where.rmdir()


@pytest.fixture
def bench(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench whose database is on that disk; the server's log of changes is on another."""
    server = EmbeddedPostgres(scratch(tmp_path_factory, "full-disk"))
    server.start()
    admin = Bench(server.url("postgres"))
    with admin.store.single_statement() as tx:
        tx.exec_driver_sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
    with admin.store.single_statement() as tx:
        tx.exec_driver_sql("CREATE DATABASE small TABLESPACE small")
    admin.close()
    migrate_to_pip483(server.url("small"))
    bench = Bench(server.url("small"))
    yield bench
    bench.close()
    server.destroy()


def filled(disk: Path) -> Path:
    """Take all the room there is; returns what takes it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return filler


def test_a_full_disk_is_told_and_work_goes_on_when_there_is_room(
    bench: Bench, disk: Path, tmp_path: Path
) -> None:
    bench.topic_with(segments=SEGMENTS)
    wanted = [bench.intend(splitting(segment)).operation.operation_id for segment in range(SEGMENTS)]
    filler, log = filled(disk), tmp_path / "worker.log"
    worker = cleave_process("worker", "--name", "w", log=log, database_url=bench.url)
    worker.start()
    try:
        wait_until(lambda: "disk of PostgreSQL is full" in log.read_text(), message="the worker says so")
        assert worker.running
        said = doctor(bench, tmp_path)
        assert said["level"] == "wrong"
        assert "disk of PostgreSQL is full" in said["finding"]

        filler.unlink()

        wait_until(lambda: not bench.live_operations(), message="every operation has ended")
        assert doctor(bench, tmp_path)["level"] == "ok"
    finally:
        worker.stop()
    assert len(wanted) == SEGMENTS
    bench.check_laws()


def test_it_is_an_outage_and_no_refusal(bench: Bench, disk: Path) -> None:
    """Nothing is given up for it."""
    filled(disk)
    with pytest.raises(StoreUnavailable, match=r"disk of PostgreSQL is full: .*; free space on it"):
        bench.execute("CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 10000)")


def doctor(bench: Bench, tmp_path: Path) -> dict[str, str]:
    """What `cleave doctor` finds of writes."""
    log = tmp_path / "doctor.json"
    log.unlink(missing_ok=True)
    asked = cleave_process("doctor", "--json", log=log, database_url=bench.url)
    asked.start()
    wait_until(lambda: not asked.running, message="it has answered")
    asked.stop()
    document = log.read_text()
    rows = json.loads(document[document.index("[") : document.rindex("]") + 1])
    [found] = [row for row in rows if row["check"] == "writes"]
    return dict(found)
