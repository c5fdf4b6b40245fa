"""Which of a connection's extras and the connection to Pulsar gives a setting. Airflow is not needed."""

from __future__ import annotations

from typing import Any

from cleave_provider.hooks.setting_precedence import extras_of_connections

PULSAR = {"our_brokers": {"pulsar_admin_url": "http://one:8080", "pulsar_token": "of-pulsar"}}


def extras_of(**extras: Any) -> dict[str, Any]:
    """The extras in force, with the connections of `PULSAR`."""
    return extras_of_connections(extras, PULSAR.__getitem__)


def test_extras_take_precedence_over_the_connection_to_pulsar() -> None:
    assert extras_of(pulsar_admin_conn_id="our_brokers", pulsar_token="of-cleave", sslmode="require") == {
        "pulsar_admin_url": "http://one:8080",
        "pulsar_token": "of-cleave",
        "sslmode": "require",
    }


def test_an_extra_that_was_left_empty_takes_no_precedence() -> None:
    assert extras_of(pulsar_admin_conn_id="our_brokers", pulsar_token="") == PULSAR["our_brokers"]


def test_a_connection_to_pulsar_that_was_left_empty_is_not_looked_up() -> None:
    assert extras_of(pulsar_admin_conn_id="", sslmode=None, pass_batch_topics="7") == {
        "pass_batch_topics": "7"
    }


def test_zero_and_false_are_given_values() -> None:
    assert extras_of(retention_minutes=0, pulsar_verify_hostname=False) == {
        "retention_minutes": 0,
        "pulsar_verify_hostname": False,
    }
