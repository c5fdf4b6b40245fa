"""Decides which source gives a setting of a task: an extra of the Cleave connection, else the connection to Pulsar
that it names, else the environment.

This module applies the first two. The environment gives the settings that neither connection has; `settings_at` of
`controller.tasks.application_of_connection` reads it. The environment never gives the database: its address is in
the fields of the Cleave connection, and extras that are libpq parameters replace parts of it. Pure; looks no
connection up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

PULSAR_EXTRA = "pulsar_admin_conn_id"
"""Extra of the Cleave connection with the id of the connection to the Pulsar cluster."""


def extras_of_connections(
    extras: Mapping[str, Any], pulsar_settings: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the settings and libpq options that the Cleave connection with these extras gives, by name.

    If the extras name a connection to Pulsar, `pulsar_settings` is called with its id, and the returned settings are
    added; extras of the Cleave connection take precedence. Raises the errors of `pulsar_settings`.
    """
    own = filled_in(extras)
    pulsar_conn_id = own.pop(PULSAR_EXTRA, None)
    if pulsar_conn_id is None:
        return own
    return {**pulsar_settings(str(pulsar_conn_id)), **own}


def filled_in(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras without the fields of the form that were left empty, which give no value."""
    return {name: value for name, value in extras.items() if value not in ("", None)}
