"""Migrates a database to the schema of this program (`cleave migrate`). Migrations are forward only.

An empty database first gets `sql/schema`, which the list of migrations records under the version BASELINE. Migrations that changed
the schema after that version follow, in the order of their names. One transaction applies all pending files: other sessions never
see a half-migrated schema, and a concurrent run waits and then has nothing to do. The same transaction drops the views of schema
`inspect` before and rebuilds them afterwards, and writes the policy defaults from the domain, so that they are declared once. A
file that changed after it was applied is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tenacity
from sqlalchemy import URL, Connection, TextClause, text

from controller import telemetry
from controller.domain.errors import Conflict, LostRace, Retryable, Terminal
from controller.domain.policy import AutoScalePolicy
from controller.store.postgres import inspect_schema, public_rights
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

BASELINE = "0.1.0"
"""Version whose schema is in sql/schema, and name of that schema in the list of migrations."""
MIGRATION_STATEMENT_SECONDS = 3600.0
"""Maximum wait in seconds for one migration file. The change of a large table takes minutes."""
READERS = inspect_schema.READERS
_VIEWS = "views"
"""Name of the views in the list of migrations: one row, whose checksum covers all their files."""


@dataclass(frozen=True, slots=True)
class _Script:
    """SQL text to execute as a whole, with the name under which the list of migrations records the text."""

    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def sql_directory() -> Path:
    """Return the directory of the SQL files: next to the package in a checkout, otherwise `share/cleave/sql` of the installation.

    Raises Terminal if neither directory has `bootstrap.sql`.
    """
    checkout = Path(__file__).resolve().parents[3] / "sql"
    installed = Path(sysconfig.get_path("data")) / "share" / "cleave" / "sql"
    for directory in (checkout, installed):
        if (directory / "bootstrap.sql").is_file():
            return directory
    raise Terminal(
        f"the SQL files of Cleave are neither in {checkout} nor in {installed}; install the package again"
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of a run. Each tuple is empty if nothing of its kind changes."""

    dependents: tuple[str, ...]
    """Descriptions of objects of other owners that the rebuild of the views would drop."""
    roles: tuple[str, ...]
    """Roles to create."""
    scripts: tuple[_Script, ...]
    """Baseline and migrations to apply, in their order."""
    views: _Script | None
    """Script that rebuilds the views; None if the views are not rebuilt."""
    grants: tuple[inspect_schema.Grant, ...]
    """Rights on the views that are granted again after the rebuild."""
    defaults: tuple[str, ...]
    """Policy parameters whose stored default changes."""
    public_rights: tuple[str, ...]
    """Names of rights of PUBLIC to revoke, and of a missing time-out for idle transactions."""
    roles_of_owner: tuple[str, ...]
    """Roles of PostgreSQL to grant to cleave_owner."""

    @property
    def names(self) -> list[str]:
        """Names of the scripts to apply; `views` is last if the views are rebuilt."""
        return [script.name for script in (*self.scripts, *([self.views] if self.views else []))]


def migrate(
    url: str | URL, directory: Path | None = None, *, drop_dependent_views: bool = False
) -> list[str]:
    """Apply all pending scripts in one transaction and return their names, with `views` at the end if the views were
    rebuilt. Empty if nothing was pending. If a script fails, nothing is applied. `directory` contains the SQL files;
    None: the files of this program.

    Also creates missing roles, writes the policy defaults and revokes rights of PUBLIC; rights that only a superuser
    can change are logged. Makes up to 8 attempts after races with another run. The login must be a superuser, a user
    who may create roles and owns the database, or (after the roles exist) a member of cleave_owner.

    Raises Conflict if an applied file has changed or is unknown to this program, if a pending migration sorts before
    an applied migration, or if a rebuild of the views would drop objects of other owners and `drop_dependent_views`
    is False. Also raises the errors of `sql_directory` and `Store.transaction`.
    """
    directory = directory or sql_directory()
    store = Store(
        url,
        application_name="cleave-migrate",
        pool_size=1,
        statement_seconds=MIGRATION_STATEMENT_SECONDS,
    )
    try:
        return _attempt(store, directory, drop_dependent_views)
    finally:
        store.dispose()


def plan(url: str | URL, directory: Path | None = None) -> Plan:
    """Return the changes that `migrate` would make with the same `directory`. Changes nothing and takes no lock; the
    role of an inspector suffices. `defaults` is empty if this login may not read the stored defaults.

    Raises Conflict if an applied file has changed or is unknown to this program, or if a pending migration sorts
    before an applied migration; Terminal if this login may not read the list of migrations; and the errors of
    `sql_directory` and `Store.transaction`. Dependent objects of other owners raise no error; the plan names them.
    """
    directory = directory or sql_directory()
    store = Store(url, application_name="cleave-migrate", pool_size=1)
    try:
        with store.transaction() as tx:
            return _plan(tx, directory, _seen_as_applied(tx))
    finally:
        store.dispose()


def pending_in(tx: Connection) -> list[str]:
    """Return the names of the scripts that are not applied yet, in their order, without `views`. The role of an
    inspector suffices.

    Raises Conflict if the applied scripts are not those of this program, for example because the database is newer,
    and Terminal if this login may not read the list of migrations.
    """
    return [script.name for script in _unapplied(_known(sql_directory()), _seen_as_applied(tx))]


def demand_current(tx: Connection) -> None:
    """Raise Retryable unless the database has the schema of this program; a migration, or another program version, corrects that. The views
    of schema inspect are not checked.

    Raises Terminal if this login may not read the list of migrations.
    """
    try:
        missing = pending_in(tx)
    except Conflict as error:
        raise Retryable(f"the database does not have the schema of this program: {error}") from error
    if missing:
        raise Retryable(
            f"the schema is older than this program: {missing[0]} and {len(missing) - 1} more are not applied; "
            "run `cleave migrate` as the owner"
        )


def newest_known() -> str:
    """Return the name of the newest migration that this program brings, or of the baseline."""
    return _known(sql_directory())[-1].name


def newest_applied(tx: Connection) -> str | None:
    """Return the name of the newest migration that this database has applied, or of the baseline if it has no migration; None if neither
    is recorded. The table `cleave.migration` must exist.
    """
    newest: str | None = tx.execute(
        text('SELECT max(name COLLATE "C") FROM cleave.migration WHERE name <> :views'), {"views": _VIEWS}
    ).scalar_one()
    return newest


@tenacity.retry(
    # Two first runs can both find a role or schema missing. One of them fails and finds the object on its next attempt.
    retry=tenacity.retry_if_exception_type(LostRace)
    | tenacity.retry_if_exception_message(match=".*concurrently.*"),
    stop=tenacity.stop_after_attempt(8),
    wait=tenacity.wait_random(0.05, 0.3),
    reraise=True,
)
def _attempt(store: Store, directory: Path, drop_dependent_views: bool) -> list[str]:
    """Apply all pending scripts in one transaction and return their names, `views` last if the views were
    rebuilt. The transaction also creates missing roles, writes the policy defaults and restricts rights;
    rights that this login cannot change are logged. Up to 8 attempts are made in case of races with another
    run. Raises Conflict as `migrate` does.
    """
    with store.transaction() as tx:
        _run(tx, _Script("bootstrap", (directory / "bootstrap.sql").read_text()))
        plan = _plan(tx, directory, _applied(tx))
        if plan.dependents and not drop_dependent_views:
            raise Conflict(
                f"the views of schema inspect must be rebuilt, but other objects depend on them: {', '.join(plan.dependents)}; drop "
                "these objects, or run `cleave migrate --drop-dependent-views`, and create them again afterwards"
            )
        if plan.views:
            inspect_schema.drop(tx)
        for script in plan.scripts:
            _run(tx, script)
            _note(tx, script)
        if plan.views:
            _run(tx, plan.views)
            inspect_schema.grant(tx, plan.grants)
            _note(tx, plan.views)
        _write_policy_defaults(tx)
        tx.exec_driver_sql("RESET ROLE")
        remaining = public_rights.restrict(tx)
        if remaining:
            log.warning("rights left that only a superuser can change", rights="; ".join(remaining))
        return plan.names


def _plan(tx: Connection, directory: Path, applied: Mapping[str, str]) -> Plan:
    """Return the changes of a run in a database in which the scripts in `applied` (checksums by name) are applied.
    The views are rebuilt if their files have changed or a script is pending. Reads the roles, rights and stored
    defaults from the database. Raises the errors of `_unapplied`.
    """
    unapplied = _unapplied(_known(directory), applied)
    views = _joined(_VIEWS, directory / "views")
    rebuild = bool(unapplied) or applied.get(_VIEWS) != views.checksum
    return Plan(
        dependents=tuple(inspect_schema.dependents(tx)) if rebuild else (),
        roles=_missing_roles(tx, directory),
        scripts=tuple(unapplied),
        views=views if rebuild else None,
        grants=tuple(inspect_schema.grants(tx)) if rebuild else (),
        defaults=_changed_defaults(tx),
        public_rights=tuple(public_rights.held_by_public(tx)),
        roles_of_owner=tuple(public_rights.missing_owner_roles(tx)),
    )


def _known(directory: Path) -> list[_Script]:
    """Return the baseline, and the migrations after it in the order of their names."""
    return [_joined(BASELINE, directory / "schema"), *_scripts(directory / "migrations")]


def _joined(name: str, directory: Path) -> _Script:
    """Return the SQL files of the directory, in the order of their names, as one script."""
    return _Script(name, "\n".join(script.sql for script in _scripts(directory)))


def _scripts(directory: Path) -> list[_Script]:
    """Return the SQL files of the directory in the order of their names, each under its name without `.sql`."""
    return [_Script(path.stem, path.read_text()) for path in sorted(directory.glob("*.sql"))]


def _run(tx: Connection, script: _Script) -> None:
    """Execute the script. Does nothing for a script without a statement."""
    if script.sql.strip():
        # With no_parameters, a percent sign in the file stays a percent sign.
        tx.exec_driver_sql(script.sql, execution_options={"no_parameters": True})


_LISTS = text("""
    SELECT c.relname, current_user,
           has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS is_readable
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE (n.nspname, c.relname) IN (('cleave', 'migration'), ('inspect', 'migrations'))
     ORDER BY n.nspname
""")
"""The relations with the list of migrations: the table first, then the view for inspectors."""
_MAY_READ_DEFAULTS = text("""
    SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = 'cleave' AND c.relname = 'policy_default'
""")
_APPLIED = text("SELECT name, checksum FROM cleave.migration")
_APPLIED_AS_READERS_SEE_IT = text("SELECT name, checksum FROM inspect.migrations")


def _seen_as_applied(tx: Connection) -> dict[str, str]:
    """Return the checksums of the applied scripts by name, from the table or, for an inspector, the view.

    Empty if the database was never migrated. Raises Terminal if this login may read neither.
    """
    lists = tx.execute(_LISTS).all()
    for relation in lists:
        if relation.is_readable:
            return _applied(tx, _APPLIED if relation.relname == "migration" else _APPLIED_AS_READERS_SEE_IT)
    if lists:
        user = lists[0].current_user
        raise Terminal(
            f"user {user} may not read the list of applied migrations; run GRANT cleave_controller TO {user}, "
            f"or GRANT cleave_inspector TO {user} for commands that only read"
        )
    return {}


def _applied(tx: Connection, statement: TextClause = _APPLIED) -> dict[str, str]:
    """Return the checksums of the applied scripts by name, including `views`. `statement` selects both from the table or the view."""
    return {row.name: row.checksum for row in tx.execute(statement)}


def _unapplied(scripts: Sequence[_Script], applied: Mapping[str, str]) -> list[_Script]:
    """Return the scripts that are not applied, in their order. `scripts` begins with the baseline. `applied` has checksums by name; `views`
    in it is ignored.

    Raises Conflict if the database is of an unreleased version, if an applied migration is unknown or has changed, or if a pending
    migration sorts before an applied one.
    """
    baseline, migrations = scripts[0], scripts[1:]
    recorded = {name: checksum for name, checksum in applied.items() if name != _VIEWS}
    if recorded and recorded.get(BASELINE) != baseline.checksum:
        raise Conflict(
            f"this database was not created from the schema of {BASELINE} but by an unreleased version, and cannot be upgraded; "
            "create a new database, or dump the data of this one and reload them into a new one"
        )
    unknown_names = sorted(set(recorded) - {script.name for script in scripts})
    if unknown_names:
        raise Conflict(f"migration {unknown_names[-1]} was applied by a newer version; upgrade this program")
    changed = [s.name for s in migrations if recorded.get(s.name, s.checksum) != s.checksum]
    if changed:
        raise Conflict(
            f"migration {changed[0]} was changed after it was applied; restore the file and add another migration"
        )
    unapplied = [script for script in scripts if script.name not in recorded]
    latest = max(recorded, default="")
    misplaced_names = [script.name for script in unapplied if script.name < latest]
    if misplaced_names:
        raise Conflict(
            f"migration {misplaced_names[0]} sorts before {latest}, which is applied; give migration {misplaced_names[0]} a higher number"
        )
    return unapplied


def _note(tx: Connection, script: _Script) -> None:
    """Record the script as applied, with its checksum."""
    tx.execute(
        text("""
            INSERT INTO cleave.migration (name, checksum) VALUES (:name, :checksum)
            ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied_by = excluded.applied_by,
                                             applied_at = excluded.applied_at
        """),
        {"name": script.name, "checksum": script.checksum},
    )


def _missing_roles(tx: Connection, directory: Path) -> tuple[str, ...]:
    """Return the roles that bootstrap.sql names and this server lacks."""
    named = dict.fromkeys(re.findall(r"'(cleave_\w+)'", (directory / "bootstrap.sql").read_text()))
    present = set(tx.execute(text("SELECT rolname FROM pg_roles")).scalars())
    return tuple(role for role in named if role not in present)


def _changed_defaults(tx: Connection) -> tuple[str, ...]:
    """Return the names of the policy parameters whose stored default the run adds, changes or deletes, sorted: all parameters if the
    database has no table of defaults yet. Empty if this login may not read the defaults.
    """
    readable = tx.execute(_MAY_READ_DEFAULTS).scalar_one_or_none()
    if readable is False:
        return ()
    rows = tx.execute(text("SELECT * FROM cleave.policy_default")).all() if readable else []
    stored, declared = {name: value for name, value in rows}, AutoScalePolicy().to_document()  # noqa: C416
    return tuple(
        sorted(name for name in stored | declared if stored.get(name, ...) != declared.get(name, ...))
    )


def _write_policy_defaults(tx: Connection) -> None:
    """Write the default of each policy parameter to `cleave.policy_default`, and delete the rows of other parameters."""
    parameters = AutoScalePolicy().to_document()
    tx.execute(
        text("""
            INSERT INTO cleave.policy_default AS d (parameter, value)
            SELECT key, value FROM jsonb_each(CAST(:parameters AS jsonb))
            ON CONFLICT (parameter) DO UPDATE SET value = excluded.value WHERE d.value IS DISTINCT FROM excluded.value
        """),
        {"parameters": json.dumps(parameters)},
    )
    tx.execute(
        text("DELETE FROM cleave.policy_default WHERE parameter <> ALL (:known)"), {"known": list(parameters)}
    )
