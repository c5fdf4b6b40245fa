"""The audit: who asked for what over HTTP, from where, and what came of it. Rows are written once and never changed; old ones go."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, text

_WRITE = text("""
    INSERT INTO cleave.audit (subject, role, address, method, path, act, status, reason, request_key, dry_run)
    VALUES (:subject, :role, :address, :method, :path, :act, :status, :reason, :request_key, :dry_run)
""")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One request and its result. `subject` and `role` are None where there was no valid token; `status` is HTTP's."""

    subject: str | None
    role: str | None
    address: str | None
    method: str
    path: str
    act: str
    status: int
    reason: str | None = None
    request_key: str | None = None
    dry_run: bool = False


def write(tx: Connection, row: AuditRow) -> None:
    """Adds the row."""
    tx.execute(_WRITE, asdict(row))


def forget_before(tx: Connection, instant: datetime) -> int:
    """Deletes the rows of before the instant, but for those of the last 30 days; returns how many went."""
    expire = text("SELECT cleave.expire_audit(:older_than)")
    return int(tx.execute(expire, {"older_than": instant}).scalar_one())
