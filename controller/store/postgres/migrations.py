"""`cleave migrate`: brings a database to the schema of this program, forward only.

Plain SQL files in the order of their names. One transaction takes everything that is pending: a half-migrated
schema is never seen, and a second run waits and then finds nothing to do. The views of schema `inspect` are
dropped before and rebuilt after, in the same transaction; the policy defaults are written from the domain, so
that they are declared once. A file that changed after it was applied is refused.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tenacity
from sqlalchemy import URL, Connection, TextClause, text

from controller import telemetry
from controller.domain.errors import Conflict, LostRace, Retryable, Terminal
from controller.domain.policy import AutoScalePolicy
from controller.store.postgres import public_rights
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

MIGRATION_STATEMENT_SECONDS = 3600.0
"""The longest wait for one file of migrations; a change of a large table takes minutes."""
_VIEWS = "views"
"""Name of the views in the ledger: one row, whose checksum covers all their files."""


@dataclass(frozen=True, slots=True)
class _Script:
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def sql_directory() -> Path:
    """Where the SQL files are: beside the package in a checkout, under `share/cleave/sql` when installed."""
    beside = Path(__file__).resolve().parents[3] / "sql"
    shared = Path(sysconfig.get_path("data")) / "share" / "cleave" / "sql"
    for directory in (beside, shared):
        if (directory / "bootstrap.sql").is_file():
            return directory
    raise Terminal(
        f"the SQL files of Cleave are neither in {beside} nor in {shared}; install the package again"
    )


def migrate(url: str | URL, sql_directory: Path | None = None) -> list[str]:
    """Applies what is pending and returns the names, `views` among them when these were rebuilt.

    Run it as a superuser, as a user who may create roles and owns the database, or (once the roles exist) as
    a member of cleave_owner. Raises Conflict when an applied file has changed or is unknown here.
    """
    directory = sql_directory or _default_directory()
    store = Store(
        url,
        application_name="cleave-migrate",
        pool_size=1,
        statement_seconds=MIGRATION_STATEMENT_SECONDS,
    )
    try:
        return _attempt(store, directory)
    finally:
        store.dispose()


def pending(url: str | URL, sql_directory: Path | None = None) -> list[str]:
    """Names of the migrations a `cleave migrate` would apply, views aside; checks the applied ones."""
    store = Store(url, application_name="cleave-migrate", pool_size=1)
    try:
        with store.transaction() as tx:
            return pending_in(tx, sql_directory)
    finally:
        store.dispose()


def pending_in(tx: Connection, sql_directory: Path | None = None) -> list[str]:
    """The same for a connection that is open; a reader's login is enough.

    Raises Conflict where the database is ahead, Terminal where this login may not see what is applied.
    """
    directory = sql_directory or _default_directory()
    return [script.name for script in _unapplied(_scripts(directory / "migrations"), _seen_as_applied(tx))]


def demand_current(tx: Connection) -> None:
    """Raises Retryable unless the schema is this program's: it may be brought to it, or the program replaced.

    Raises Terminal where this login may not see what is applied.
    """
    try:
        missing = pending_in(tx)
    except Conflict as error:
        raise Retryable(f"the schema is not this program's: {error}") from error
    if missing:
        raise Retryable(
            f"the schema is older than this program: {missing[0]} is not applied, with {len(missing) - 1} more; "
            "run `cleave migrate` as the owner"
        )


def newest_known() -> str:
    """Return the name of the newest migration that this program brings."""
    return max(path.stem for path in (sql_directory() / "migrations").glob("*.sql"))


def newest_applied(tx: Connection) -> str | None:
    """Return the name of the newest migration of this database. None if there is none."""
    newest: str | None = tx.execute(
        text("SELECT max(name) FROM cleave.migration WHERE name <> :views"), {"views": _VIEWS}
    ).scalar_one()
    return newest


_default_directory = sql_directory  # the parameter of the same name hides the function


@tenacity.retry(
    # Two first runs can both find a role or schema missing. The second one finds it made on its next try.
    retry=tenacity.retry_if_exception_type(LostRace)
    | tenacity.retry_if_exception_message(match=".*concurrently.*"),
    stop=tenacity.stop_after_attempt(8),
    wait=tenacity.wait_random(0.05, 0.3),
    reraise=True,
)
def _attempt(store: Store, directory: Path) -> list[str]:
    with store.transaction() as tx:
        _run(tx, _Script("bootstrap", (directory / "bootstrap.sql").read_text()))
        applied = _applied(tx)
        unapplied = _unapplied(_scripts(directory / "migrations"), applied)
        views = _Script(_VIEWS, "\n".join(s.sql for s in _scripts(directory / "views")))
        rebuild = bool(unapplied) or applied.get(_VIEWS) != views.checksum
        if rebuild:
            _drop_views(tx)
        for script in unapplied:
            _run(tx, script)
            _note(tx, script)
        if rebuild:
            _run(tx, views)
            _grant_views(tx)
            _note(tx, views)
        _write_policy_defaults(tx)
        tx.exec_driver_sql("RESET ROLE")
        left = public_rights.restrict(tx)
        if left:
            log.warning("rights left that only a superuser can change", rights="; ".join(left))
        return [script.name for script in (*unapplied, *([views] if rebuild else []))]


def _scripts(directory: Path) -> list[_Script]:
    return [_Script(path.stem, path.read_text()) for path in sorted(directory.glob("*.sql"))]


def _run(tx: Connection, script: _Script) -> None:
    if script.sql.strip():
        # no_parameters: a percent sign in the file is a percent sign
        tx.exec_driver_sql(script.sql, execution_options={"no_parameters": True})


_LEDGERS = text("""
    SELECT c.relname, current_user,
           has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS is_readable
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE (n.nspname, c.relname) IN (('cleave', 'migration'), ('inspect', 'migrations'))
     ORDER BY n.nspname
""")
"""Where what is applied is written down: the table first, then the view that readers see."""
_APPLIED = text("SELECT name, checksum FROM cleave.migration")
_APPLIED_AS_READERS_SEE_IT = text("SELECT name, checksum FROM inspect.migrations")


def _seen_as_applied(tx: Connection) -> dict[str, str]:
    """What is applied, by whatever this login may read; nothing on a database that was never migrated."""
    ledgers = tx.execute(_LEDGERS).all()
    for ledger in ledgers:
        if ledger.is_readable:
            return _applied(tx, _APPLIED if ledger.relname == "migration" else _APPLIED_AS_READERS_SEE_IT)
    if ledgers:
        user = ledgers[0].current_user
        raise Terminal(
            f"user {user} may not read which migrations are applied; run GRANT cleave_controller TO {user}, "
            f"or GRANT cleave_inspector TO {user} for commands that only read"
        )
    return {}


def _applied(tx: Connection, statement: TextClause = _APPLIED) -> dict[str, str]:
    return {row.name: row.checksum for row in tx.execute(statement)}


def _unapplied(scripts: Sequence[_Script], applied: Mapping[str, str]) -> list[_Script]:
    """What is left to do; refuses drift and a database that is ahead of these files."""
    known = {script.name for script in scripts}
    ahead = sorted(set(applied) - known - {_VIEWS})
    if ahead:
        raise Conflict(f"migration {ahead[-1]} was applied by a newer program; upgrade this one")
    changed = [s.name for s in scripts if applied.get(s.name, s.checksum) != s.checksum]
    if changed:
        raise Conflict(
            f"migration {changed[0]} was changed after it was applied; restore the file and write a new one"
        )
    unapplied = [script for script in scripts if script.name not in applied]
    latest = max((name for name in applied if name != _VIEWS), default="")
    late = [script.name for script in unapplied if script.name < latest]
    if late:
        raise Conflict(
            f"migration {late[0]} sorts before {latest}, which is applied; give it a higher number"
        )
    return unapplied


def _note(tx: Connection, script: _Script) -> None:
    tx.execute(
        text("""
            INSERT INTO cleave.migration (name, checksum) VALUES (:name, :checksum)
            ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied_by = excluded.applied_by,
                                             applied_at = excluded.applied_at
        """),
        {"name": script.name, "checksum": script.checksum},
    )


def _drop_views(tx: Connection) -> None:
    """Everything in schema inspect; CASCADE, because nothing but people may depend on it."""
    found = tx.execute(
        text("""
            SELECT format('DROP VIEW IF EXISTS %I.%I CASCADE', 'inspect', c.relname) AS statement
              FROM pg_class c WHERE c.relnamespace = 'inspect'::regnamespace AND c.relkind = 'v'
            UNION ALL
            SELECT format('DROP ROUTINE IF EXISTS %s CASCADE', p.oid::regprocedure)
              FROM pg_proc p WHERE p.pronamespace = 'inspect'::regnamespace
        """)
    ).scalars()
    for statement in found:
        tx.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _grant_views(tx: Connection) -> None:
    tx.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA inspect TO cleave_inspector, cleave_controller"))
    tx.execute(text("GRANT EXECUTE ON ALL ROUTINES IN SCHEMA inspect TO cleave_inspector, cleave_controller"))


def _write_policy_defaults(tx: Connection) -> None:
    knobs = AutoScalePolicy().to_document()
    tx.execute(
        text("""
            INSERT INTO cleave.policy_default AS d (knob, value)
            SELECT key, value FROM jsonb_each(CAST(:knobs AS jsonb))
            ON CONFLICT (knob) DO UPDATE SET value = excluded.value WHERE d.value IS DISTINCT FROM excluded.value
        """),
        {"knobs": json.dumps(knobs)},
    )
    tx.execute(text("DELETE FROM cleave.policy_default WHERE knob <> ALL (:known)"), {"known": list(knobs)})
