"""Checks of rights that every login of the server has, and of logins without limits. Each check returns its
result as a sentence.
"""

from __future__ import annotations

from controller.bootstrap import Application
from controller.doctor.findings import Note
from controller.store.postgres import public_rights


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
