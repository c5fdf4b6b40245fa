"""The audit: requests over HTTP with subject, call, address and result. Rows are written once and never changed; old rows are deleted."""

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
    """One request and its result. `subject` and `role` are None without a valid token; `act` is the name of the call; `status` is the HTTP
    status; `reason` is the reason of a refusal, None if the request was done.
    """

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
    """Add the row to the audit, with the present time of the database."""
    tx.execute(_WRITE, asdict(row))


def forget_before(tx: Connection, instant: datetime) -> int:
    """Delete rows that are older than `instant` and than 30 days. Return the number of deleted rows."""
    expire = text("SELECT cleave.expire_audit(:older_than)")
    return int(tx.execute(expire, {"older_than": instant}).scalar_one())
