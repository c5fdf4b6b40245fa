"""Which of a connection's extras and the connection to Pulsar gives a setting. Airflow is not needed."""

from __future__ import annotations

from typing import Any

import pytest

from cleave_provider.hooks.setting_precedence import extras_of_connections

PULSAR = {"our_brokers": {"pulsar_admin_url": "http://one:8080", "pulsar_token": "of-pulsar"}}


def extras_of(**extras: Any) -> dict[str, Any]:
    """The extras in force, with the connections of `PULSAR`."""
    return extras_of_connections(extras, PULSAR.__getitem__)


@pytest.mark.parametrize(
    ("given", "in_force"),
    [
        (
            {"pulsar_admin_conn_id": "our_brokers", "pulsar_token": "of-cleave", "sslmode": "require"},
            {"pulsar_admin_url": "http://one:8080", "pulsar_token": "of-cleave", "sslmode": "require"},
        ),
        ({"pulsar_admin_conn_id": "our_brokers", "pulsar_token": ""}, PULSAR["our_brokers"]),
        (
            {"pulsar_admin_conn_id": "", "sslmode": None, "pass_batch_topics": "7"},
            {"pass_batch_topics": "7"},
        ),
        (
            {"retention_minutes": 0, "pulsar_verify_hostname": False},
            {"retention_minutes": 0, "pulsar_verify_hostname": False},
        ),
    ],
    ids=[
        "extras take precedence",
        "an empty extra takes none",
        "an empty connection is not looked up",
        "zero and False are given values",
    ],
)
def test_extras_in_force(given: dict[str, Any], in_force: dict[str, Any]) -> None:
    assert extras_of(**given) == in_force
