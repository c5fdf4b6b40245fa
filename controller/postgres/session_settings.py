"""Sets the settings of a session that Cleave's statements need, independent of the settings of the database, the login and the server.

`ALTER DATABASE ... SET` and `ALTER ROLE ... SET` change how a session reads literals, writes values and finds names. So each connection
sets its own settings: in libpq's `options`, which apply before the first statement, and by one statement afterwards, because a pooler
may refuse or ignore `options`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING

from controller.postgres.pooler import PoolerUnfit

if TYPE_CHECKING:
    import psycopg2.extensions

STATEMENT_SECONDS = 60.0
"""Maximum wait in seconds for a statement, if the process sets no other limit."""
BULK_STATEMENT_SECONDS = 600.0
"""Maximum wait in seconds for a statement of a process that reads or writes the rows of the whole fleet at once."""
LOCK_TIMEOUT_SECONDS = 30
"""Maximum time in seconds for which a statement waits for a lock."""
_LOCK_SHARE, _SERVER_SHARE = 0.6, 0.8
"""Fractions of the time limit of a statement after which a reachable server ends the wait for a lock, and the statement."""

_SETTINGS: Mapping[str, str] = {
    "array_nulls": "on",
    "backslash_quote": "safe_encoding",
    "bytea_output": "hex",
    "datestyle": "ISO, MDY",
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    "exit_on_error": "off",
    "extra_float_digits": "1",
    "idle_session_timeout": "0",
    "intervalstyle": "postgres",
    "plan_cache_mode": "auto",
    "quote_all_identifiers": "off",
    "row_security": "on",
    "search_path": "public",
    "standard_conforming_strings": "on",
    "timezone": "UTC",
    "transform_null_equals": "off",
}
"""The settings for which statements are written. Except for the time zone, these are PostgreSQL's defaults."""
_AFTER_THE_START: Mapping[str, str] = {
    "default_transaction_read_only": "off",
    "plpgsql.extra_errors": "none",
    "transaction_timeout": "0",
}
"""Settings that are not in `options`, because some servers do not know them, or because their origin decides whether they are changed."""

_SETTLE = """
    SELECT pg_catalog.pg_backend_pid(), pg_catalog.count(pg_catalog.set_config(name, value, false))
      FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS wanted (name, value)
     WHERE CASE name
           WHEN 'default_transaction_read_only'
           THEN pg_catalog.current_setting(name) = 'on'
                AND (SELECT source FROM pg_catalog.pg_settings AS s WHERE s.name = wanted.name) IN ('database', 'user', 'database user')
           ELSE pg_catalog.current_setting(name, true) IS NOT NULL
           END
"""
"""The statement does not change default_transaction_read_only if the whole server has it, because operators fence a replaced primary
that way.
"""
_WORD = re.compile(r"(?:\\.|[^\s\\])+", re.DOTALL)


def settings(statement_seconds: float, more: Mapping[str, str]) -> dict[str, str]:
    """Return the settings, by name, of a session whose process waits `statement_seconds` (finite) for a statement. Settings in `more`
    take precedence.

    `lock_timeout` (at most `LOCK_TIMEOUT_SECONDS`) and `statement_timeout` end before that wait, so that a live server rolls a slow
    statement back.
    """
    lock_ms = 1000 * min(LOCK_TIMEOUT_SECONDS, _LOCK_SHARE * statement_seconds)
    return {
        **_SETTINGS,
        "lock_timeout": f"{max(1, int(lock_ms))}ms",
        "statement_timeout": f"{max(1, int(1000 * _SERVER_SHARE * statement_seconds))}ms",
        **more,
    }


def as_options(values: Mapping[str, str]) -> str:
    """Return the settings as libpq's `options`."""
    return " ".join(f"-c {name}=" + re.sub(r"([\s\\])", r"\\\1", value) for name, value in values.items())


def apply_options(connection: psycopg2.extensions.connection, options: str, but: Container[str]) -> None:
    """Set the settings in libpq's `options` of a database URL, except for the names in `but` (lower case), for the rest of the session.
    Needs autocommit.

    Raises PoolerUnfit for a switch that is not a setting, psycopg2.Error for a setting that the server refuses.
    """
    for name, value in _of_options(options):
        if name.lower() not in but:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))


def _of_options(options: str) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each switch, as the server reads `-c name=value`, `-cname=value` and `--name=value`. Hyphens in a name
    become underscores. Raises PoolerUnfit for another switch.
    """
    words = (re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL) for word in _WORD.findall(options))
    for word in words:
        assignment = next(words, "") if word == "-c" else re.sub(r"^(-c|--)", "", word)
        name, is_setting, value = assignment.partition("=")
        if not is_setting or not (word.startswith(("-c", "--"))):
            raise PoolerUnfit(
                "through a pooler, options of the database URL may only be settings; write each as -c name=value"
            )
        yield name.replace("-", "_"), value


def settle(connection: psycopg2.extensions.connection, values: Mapping[str, str]) -> int:
    """Set the settings `values` and `_AFTER_THE_START` for the rest of the session; `values` take precedence. Settings that the server
    does not know are left out. Return the id of the server process of the session. Needs autocommit. Raises psycopg2.Error.

    Sets default_transaction_read_only to off only if the database or the login turns it on.
    """
    settings_to_set = {**_AFTER_THE_START, **values}
    with connection.cursor() as cursor:
        cursor.execute(_SETTLE, (list(settings_to_set), list(settings_to_set.values())))
        [(process, _)] = cursor.fetchall()
    return int(process)
