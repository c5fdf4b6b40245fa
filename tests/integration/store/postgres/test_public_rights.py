"""Rights of PUBLIC after `cleave migrate`: revoked by a superuser, and reported by a login that may not revoke them."""

from __future__ import annotations

import secrets

from sqlalchemy import text
from structlog.testing import capture_logs

from controller.devstack.postgres import PostgresServer
from controller.store.postgres import public_rights
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate


def test_a_superuser_leaves_nothing_to_everybody(
    postgres_server: PostgresServer, empty_database: str
) -> None:
    migrate(empty_database)

    store = Store(empty_database)
    with store.transaction() as tx:
        assert public_rights.held_by_public(tx) == []
        assert public_rights.missing_owner_roles(tx) == []
        assert tx.execute(
            text("SELECT has_database_privilege('cleave_owner', current_database(), 'TEMP')")
        ).scalar_one()
        tx.execute(text("SELECT pg_advisory_lock(1), lo_create(0)"))
    store.dispose()
    assert migrate(empty_database) == []


def test_a_time_out_that_was_set_by_hand_stays(empty_database: str) -> None:
    store = Store(empty_database)
    name = empty_database.rpartition("/")[2]
    with store.transaction() as tx:
        tx.execute(text(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '7s'"))

    migrate(empty_database)

    with store.transaction() as tx:
        settings = tx.execute(
            text(
                "SELECT setconfig FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )
        assert settings.scalar_one() == ["idle_in_transaction_session_timeout=7s"]
    store.dispose()


def test_an_owner_who_is_no_superuser_migrates_and_is_told_what_is_left(
    pristine_server: PostgresServer,
) -> None:
    """As on a managed server, where functions of PostgreSQL belong to the provider."""
    name, user = f"managed_{secrets.token_hex(4)}", f"deployer_{secrets.token_hex(4)}"
    admin = Store(pristine_server.create_database(name))
    with admin.transaction() as tx:
        tx.execute(text(f"CREATE ROLE {user} LOGIN CREATEROLE PASSWORD 'pw'"))
        tx.execute(text(f"ALTER DATABASE {name} OWNER TO {user}"))
        for role in ("owner", "controller", "spark_loader", "inspector", "client"):
            if not tx.execute(text(f"SELECT FROM pg_roles WHERE rolname = 'cleave_{role}'")).all():
                tx.execute(text(f"CREATE ROLE cleave_{role} NOLOGIN"))
        tx.execute(text(f"GRANT cleave_owner TO {user}"))

    with capture_logs() as lines:
        migrate(pristine_server.url(name, user=user, password="pw"))

    (warning,) = [line["rights"] for line in lines if "only a superuser" in line["event"]]
    for left in (
        "PUBLIC has: advisory locks",
        "PUBLIC has: large objects",
        "pg_signal_backend",
        "pg_read_all_stats",
    ):
        assert left in warning
    assert "temporary tables" not in warning
    with admin.transaction() as tx:
        assert public_rights.held_by_public(tx) == ["advisory locks", "large objects"]
    admin.dispose()
