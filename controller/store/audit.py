"""The audit: who asked for what over HTTP, from where, and what came of it. Rows are written once and never changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, text

_WRITE = text("""
    INSERT INTO cleave.audit (subject, role, address, method, path, act, status, reason, request_key)
    VALUES (:subject, :role, :address, :method, :path, :act, :status, :reason, :request_key)
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


def write(tx: Connection, row: AuditRow) -> None:
    """Adds the row."""
    tx.execute(_WRITE, asdict(row))
