"""Checks of rights that every login of the server has, and of logins without limits."""

from __future__ import annotations

from controller.bootstrap import Application
from controller.doctor.findings import Note
from controller.store.postgres import public_rights


def public(cleave: Application) -> str:
    """Report that PUBLIC has no rights. Raises Note with the remaining rights and the statements that revoke them."""
    with cleave.store.transaction() as tx:
        held = public_rights.held_by_public(tx)
        missing = public_rights.missing_owner_roles(tx)
        databases = public_rights.databases_open_to_public(tx)
    findings = []
    if held:
        findings.append(
            f"PUBLIC has in this database: {', '.join(held)}; run `cleave migrate` as a superuser"
        )
    if databases:
        findings.append(
            f"every login may connect to {', '.join(databases)}; run REVOKE CONNECT ON DATABASE {databases[0]} FROM PUBLIC"
        )
    if missing:
        findings.append(
            "transactions of applications that keep a log locked are not ended; as a superuser run "
            f"GRANT {', '.join(missing)} TO cleave_owner"
        )
    if findings:
        raise Note(". ".join(findings))
    return "a login without a role of Cleave's may do nothing here"


def logins(cleave: Application) -> str:
    """Report that logins of applications and readers have limits. Raises Note with the logins that have none."""
    with cleave.store.transaction() as tx:
        unlimited = public_rights.logins_without_limits(tx)
    if not unlimited:
        return "each login of applications and readers has limits"
    raise Note(
        f"no limit on connections, or no statement_timeout: {', '.join(unlimited)}; run ALTER ROLE {unlimited[0]} CONNECTION LIMIT 40, "
        f"and ALTER ROLE {unlimited[0]} SET statement_timeout = '30s'"
    )
