"""Leases: expiring rights, each with a term and an expiry time by the clock of the database.

Workers announce themselves (`worker/<id>`), agree on the number of shards (`shard-count`) and divide the topics (`shard/<i>`) by leases. Any worker may take a lease that
has expired or was resigned; each time the term rises by one. So a late write of the former holder is recognised: every
writer checks `still_held` in its own transaction. Rows are never deleted, because terms must not start again.

An incarnation identifies the process behind a holder's name, so that two processes of one name can be distinguished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, TextClause, text

from controller.domain.errors import TopicNotFound


@dataclass(frozen=True, slots=True)
class Lease:
    """A right that `holder` has for one term, until `expires_at` by the clock of the database."""

    name: str
    holder: str
    term: int
    expires_at: datetime
    incarnation: str | None = None
    """Identifier of the holder's process; None if the holder's program is too old to report one."""


_RETURNING = "RETURNING l.name, l.holder, l.term, l.expires_at, l.incarnation"
_TAKE = """
    INSERT INTO cleave.lease AS l (name, holder, incarnation, expires_at)
    VALUES (:name, :holder, :incarnation, clock_timestamp() + make_interval(secs => :ttl_seconds))
    ON CONFLICT (name) DO UPDATE SET
        holder = excluded.holder,
        incarnation = excluded.incarnation,
        term = l.term + CASE WHEN {mine} THEN 0 ELSE 1 END,
        acquired_at = CASE WHEN {mine} THEN l.acquired_at ELSE clock_timestamp() END,
        renewed_at = clock_timestamp(),
        expires_at = clock_timestamp() + make_interval(secs => :ttl_seconds)
"""
_MINE = """l.holder = excluded.holder AND l.incarnation IS NOT DISTINCT FROM excluded.incarnation
           AND l.expires_at > clock_timestamp()"""
_ACQUIRE = text(_TAKE.format(mine="false") + " WHERE l.expires_at <= clock_timestamp() " + _RETURNING)
_RENEW_OR_ACQUIRE = text(
    _TAKE.format(mine=_MINE) + f" WHERE l.expires_at <= clock_timestamp() OR ({_MINE}) " + _RETURNING
)
_RENEW = text("""
    UPDATE cleave.lease l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => :ttl_seconds)
     WHERE l.name = :name AND l.holder = :holder AND l.term = :term AND l.expires_at > clock_timestamp()
    RETURNING l.name, l.holder, l.term, l.expires_at, l.incarnation
""")
# Rows that another process has locked are skipped: it may be renewing them, and the next call finds the others. The present time is
# read for each row, because a lease may be renewed while the statement runs.
_LIMIT = text("""
    UPDATE cleave.lease l SET expires_at = l.expires_at - (l.renewed_at - clock_timestamp()), renewed_at = clock_timestamp()
      FROM (SELECT name FROM cleave.lease WHERE renewed_at > clock_timestamp() AND expires_at > clock_timestamp()
               FOR NO KEY UPDATE SKIP LOCKED) ahead
     WHERE l.name = ahead.name
""")


def limit_to_clock(tx: Connection) -> None:
    """End each lease that was renewed in the future after its length from now, unless its holder renews it until then.
    Such a lease was renewed by another server, or before the clock was set; else the lease of a dead holder would last
    longer by the difference. No holder loses a lease that it trusts, because it counts from before its last renewal.
    """
    tx.execute(_LIMIT)


def acquire(
    tx: Connection, name: str, holder: str, ttl_seconds: float, incarnation: str | None = None
) -> Lease | None:
    """Take a lease that is free, expired or resigned, for `ttl_seconds`, at the next term, and return it.

    Return None while any process holds the lease, including this one. `incarnation` identifies this process.
    """
    return _lease(tx, _ACQUIRE, name=name, holder=holder, ttl_seconds=ttl_seconds, incarnation=incarnation)


def renew_or_acquire(
    tx: Connection, name: str, holder: str, ttl_seconds: float, incarnation: str | None = None
) -> Lease | None:
    """Renew the lease at its term if this process holds it; otherwise take the lease if it is free, at the next term. Return the lease;
    None while another process holds it, even a process of the same name, which has another `incarnation`.
    """
    return _lease(
        tx, _RENEW_OR_ACQUIRE, name=name, holder=holder, ttl_seconds=ttl_seconds, incarnation=incarnation
    )


def renew(tx: Connection, lease: Lease, ttl_seconds: float) -> Lease | None:
    """Extend the lease to `ttl_seconds` from now, and return it with its next expiry. Return None, and change nothing, if this term has
    ended, by expiry or by another holder.
    """
    return _lease(tx, _RENEW, name=lease.name, holder=lease.holder, term=lease.term, ttl_seconds=ttl_seconds)


def resign(tx: Connection, lease: Lease) -> None:
    """End this term at once, so that the next holder need not wait. Does nothing if the lease has another term."""
    tx.execute(
        text("""
            UPDATE cleave.lease SET expires_at = least(expires_at, clock_timestamp())
             WHERE name = :name AND holder = :holder AND term = :term
        """),
        {"name": lease.name, "holder": lease.holder, "term": lease.term},
    )


def resign_all(tx: Connection, holder: str, incarnation: str | None = None) -> None:
    """End all leases of this process at once. Another process of the same name, which has another `incarnation`, keeps its leases."""
    tx.execute(
        text("""
            UPDATE cleave.lease SET expires_at = least(expires_at, clock_timestamp())
             WHERE holder = :holder AND incarnation IS NOT DISTINCT FROM :incarnation
        """),
        {"holder": holder, "incarnation": incarnation},
    )


def resign_forgotten(
    tx: Connection, prefix: str, holder: str, incarnation: str | None, held: Sequence[Lease]
) -> None:
    """End the leases with the prefix whose rows name this process but which are not among `held`. Does nothing if
    `incarnation` is None.

    A lease that this process does not know of exists if the answer to an earlier request was lost, or if a fail-over
    lost the row of a later holder.
    """
    tx.execute(
        text("""
            UPDATE cleave.lease SET expires_at = clock_timestamp()
             WHERE starts_with(name, :prefix) AND holder = :holder AND incarnation = :incarnation
               AND name <> ALL (:held) AND expires_at > clock_timestamp()
        """),
        {
            "prefix": prefix,
            "holder": holder,
            "incarnation": incarnation,
            "held": [lease.name for lease in held],
        },
    )


def announce(
    tx: Connection, name: str, holder: str, address: str | None, schema_version: str | None = None
) -> None:
    """Record the web address of the holder of this lease (None: it serves no HTTP), and the name of the newest migration that its
    program knows (`schema_version`; None: unknown). Does nothing if another holder has the lease.
    """
    tx.execute(
        text("""
            UPDATE cleave.lease SET address = :address, schema_version = :schema_version
             WHERE name = :name AND holder = :holder
               AND (address, schema_version) IS DISTINCT FROM (:address, CAST(:schema_version AS text))
        """),
        {"name": name, "holder": holder, "address": address, "schema_version": schema_version},
    )


def read(tx: Connection, name: str) -> Lease | None:
    """Return the lease as its row stands, in force or expired. None if no process ever took the lease."""
    return _lease(
        tx,
        text("SELECT name, holder, term, expires_at, incarnation FROM cleave.lease WHERE name = :name"),
        name=name,
    )


def address_of_holder(tx: Connection, name: str) -> str | None:
    """Return the web address of the worker that holds the lease. None if no worker holds the lease, if the lease
    `worker/<id>` of the holder has expired, or if the holder serves no HTTP.
    """
    address: str | None = tx.execute(
        text("""
            SELECT w.address FROM cleave.lease l
              JOIN cleave.lease w ON w.name = 'worker/' || l.holder AND w.expires_at > clock_timestamp()
             WHERE l.name = :name AND l.expires_at > clock_timestamp()
        """),
        {"name": name},
    ).scalar_one_or_none()
    return address


def find_leader(tx: Connection, topic: str, shard_count: int) -> tuple[int, str | None]:
    """Return the id of the topic of that name, which is not deleted, and the web address of the topic's leader. The
    address is None if no worker holds the topic's shard, if the lease `worker/<id>` of the leader has expired, or if
    the leader serves no HTTP. `shard_count` is the number of shards of the installation. Raises TopicNotFound.
    """
    row = tx.execute(
        text("""
            SELECT t.topic_id, w.address FROM cleave.topic t
              LEFT JOIN cleave.lease l ON l.name = 'shard/' || t.topic_id % :shards AND l.expires_at > clock_timestamp()
              LEFT JOIN cleave.lease w ON w.name = 'worker/' || l.holder AND w.expires_at > clock_timestamp()
             WHERE t.name = :topic AND t.state <> 'deleted'
        """),
        {"topic": topic, "shards": shard_count},
    ).one_or_none()
    if row is None:
        raise TopicNotFound(f"topic {topic} does not exist; create it or check the name")
    return row.topic_id, row.address


def limit_pause(tx: Connection, seconds: float) -> None:
    """Make the server end this session if the transaction is idle for `seconds`, at least 1 ms. The limit ends with the transaction.

    Otherwise a process that is paused while it locks lease rows would keep other processes from taking the leases over.
    """
    tx.execute(
        text("SELECT set_config('idle_in_transaction_session_timeout', :milliseconds, true)"),
        {"milliseconds": str(max(int(seconds * 1000), 1))},
    )


def live_leases(tx: Connection, prefix: str) -> list[Lease]:
    """Return the leases in force whose names begin with the prefix, by name. `worker/` lists the running workers."""
    rows = tx.execute(
        text("""
            SELECT name, holder, term, expires_at, incarnation FROM cleave.lease
             WHERE starts_with(name, :prefix) AND expires_at > clock_timestamp() ORDER BY name
        """),
        {"prefix": prefix},
    )
    return [Lease(*row) for row in rows]


def still_held(tx: Connection, leases: Sequence[Lease]) -> bool:
    """Return True if all leases are in force at their terms. Share locks keep other processes from taking or changing the leases until
    the transaction ends; they are taken in the order in which shards are renewed.
    """
    rows = tx.execute(
        text("""
            SELECT l.name FROM cleave.lease l
              JOIN unnest(CAST(:names AS text[]), CAST(:holders AS text[]), CAST(:terms AS bigint[]))
                   AS mine (name, holder, term)
                ON l.name = mine.name AND l.holder = mine.holder AND l.term = mine.term
             WHERE l.expires_at > clock_timestamp()
             ORDER BY length(l.name), l.name FOR SHARE OF l
        """),
        {
            "names": [lease.name for lease in leases],
            "holders": [lease.holder for lease in leases],
            "terms": [lease.term for lease in leases],
        },
    )
    return len(rows.all()) == len(leases)


def _lease(tx: Connection, statement: TextClause, **parameters: object) -> Lease | None:
    """Execute the statement, and return the lease in its row; None if the statement returns no row."""
    row = tx.execute(statement, parameters).one_or_none()
    return None if row is None else Lease(*row)
