"""Checks of the database: version, schema, roles of the logins, rights that every login of the server has, logins without limits, and
space to write. Each check returns its result as a sentence.
"""

from __future__ import annotations

from controller.bootstrap import Application
from controller.doctor.deadline import STATEMENT_SECONDS
from controller.doctor.findings import Note
from controller.domain.errors import Terminal
from controller.store.postgres import migrations, public_rights
from controller.store.postgres.engine import Store, is_pooled, server_version
from controller.store.postgres.public_rights import Login

OLDEST_POSTGRES = 150_000
"""Oldest version of PostgreSQL, as `server_version_num` has it."""


def database(cleave: Application) -> str:
    """Return the server's version and whether a pooler is in between. Raises Terminal for a version that is too old,
    StoreUnavailable if the connection fails.
    """
    with cleave.store.transaction() as tx:
        pooler_text = ", through a pooler that keeps sessions" if is_pooled(tx) else ""
        number, version = server_version(tx)
    if number < OLDEST_POSTGRES:
        raise Terminal(
            f"PostgreSQL {version} at {cleave.settings.database_label}: Cleave needs 15 or newer; upgrade the server"
        )
    return f"PostgreSQL {version} at {cleave.settings.database_label}{pooler_text}"


def schema(cleave: Application) -> str:
    """Check that every migration is applied. Raises Terminal with the number of pending migrations and the first, or if
    this login may not read the list of migrations; Conflict if the applied migrations are not those of this program,
    for example because the database is newer.
    """
    with cleave.store.transaction() as tx:
        missing = migrations.pending_in(tx)
    if missing:
        raise Terminal(
            f"{len(missing)} migrations are not applied ({missing[0]} first); run `cleave migrate` as the owner"
        )
    return "up to date"


def role(cleave: Application) -> str:
    """Check that the login has the role `cleave_controller`. Raises Note if the login only has `cleave_inspector` or
    has more rights than the controller needs, Terminal without the role.
    """
    with cleave.store.transaction() as tx:
        login = public_rights.login(tx)
    if "cleave_inspector" in login.roles and "cleave_controller" not in login.roles:
        raise Note(
            f"user {login.user} is in role cleave_inspector: enough for commands that only read; the worker, the "
            "collector and commands that change something need a login in role cleave_controller"
        )
    return _demand_role(login, "cleave_controller", "database_url")


def loader_role(cleave: Application) -> str:
    """Connect with the loader's login, and check that the login has the role `cleave_spark_loader`. Raises Note if no
    such login is set or the login has more rights than necessary, Terminal without the role, StoreUnavailable if the
    connection fails.
    """
    if cleave.settings.loader_url is None:
        raise Note(
            "CLEAVE_LOADER_URL is not set: the aggregation writes with the controller's rights; give it a "
            "login of its own"
        )
    loader = Store(
        cleave.settings.loader_dsn,
        application_name="cleave-doctor",
        pool_size=1,
        statement_seconds=STATEMENT_SECONDS,
    )
    try:
        with loader.transaction() as tx:
            login = public_rights.login(tx)
    finally:
        loader.dispose()
    return _demand_role(login, "cleave_spark_loader", "loader_url")


def public(cleave: Application) -> str:
    """Check that PUBLIC has no rights in this database, and that idle transactions have a time-out. Raises Note
    with the rights and time-outs to correct, up to 5 databases open to every login, and roles that cleave_owner
    lacks, each with the statement that corrects it.
    """
    with cleave.store.transaction() as tx:
        public_rights_left = public_rights.held_by_public(tx)
        missing_roles = public_rights.missing_owner_roles(tx)
        databases = public_rights.databases_open_to_public(tx)
    findings = []
    if public_rights_left:
        findings.append(
            f"PUBLIC has in this database: {', '.join(public_rights_left)}; run `cleave migrate` as a superuser"
        )
    if databases:
        findings.append(
            f"every login may connect to {', '.join(databases)}; run REVOKE CONNECT ON DATABASE {databases[0]} FROM PUBLIC"
        )
    if missing_roles:
        findings.append(
            "transactions of applications that keep a log locked are not ended; as a superuser run "
            f"GRANT {', '.join(missing_roles)} TO cleave_owner"
        )
    if findings:
        raise Note(". ".join(findings))
    return "a login without a role of Cleave's may do nothing here"


def logins(cleave: Application) -> str:
    """Check that logins of applications and readers have limits: on connections, and `statement_timeout`.
    Raises Note with up to 5 logins that lack either.
    """
    with cleave.store.transaction() as tx:
        unlimited = public_rights.logins_without_limits(tx)
    if not unlimited:
        return "each login of applications and readers has limits"
    raise Note(
        f"no limit on connections, or no statement_timeout: {', '.join(unlimited)}; run ALTER ROLE {unlimited[0]} CONNECTION LIMIT 40, "
        f"and ALTER ROLE {unlimited[0]} SET statement_timeout = '30s'"
    )


def writes(cleave: Application) -> str:
    """Check that the database accepts writes: write a temporary table of a megabyte, which the end of the
    transaction removes. Raises Note if the login may not create one, StoreUnavailable if the disk is full or
    the server is a standby.
    """
    with cleave.store.transaction() as tx:
        if not public_rights.write_temporary(tx):
            raise Note("not checked: this login may create no temporary table")
    return "a megabyte was written and removed"


def _demand_role(login: Login, role: str, setting: str) -> str:
    """Return a sentence that says that the login has the role. Raises Terminal if the login does not have the role,
    Note if the login has more rights than the role's. `setting` is the name of the setting with the login.
    """
    if role not in login.roles:
        raise Terminal(f"user {login.user} is not in role {role}; run GRANT {role} TO {login.user}")
    if login.surplus is not None:
        raise Note(
            f"user {login.user} is {login.surplus}, which only `cleave migrate` needs; give CLEAVE_{setting.upper()} a login in "
            f"role {role} only, and people who only read one in role cleave_inspector"
        )
    return f"user {login.user} is in role {role}"
