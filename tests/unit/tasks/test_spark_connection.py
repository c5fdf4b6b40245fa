"""From a Spark connection to a master and settings, in the forms of Airflow's Spark provider."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from controller.domain.errors import InvalidInput
from controller.tasks.application_of_connection import settings_at
from controller.tasks.spark_connection import spark_settings

DSN = "postgresql://airflow:p%40ss@db/cleave"


def connection(
    conn_type: str, host: str | None = None, port: int | None = None, **more: Any
) -> Callable[[], dict[str, object]]:
    """As Airflow hands it over; a call gives its settings."""
    return partial(spark_settings, "cleave_spark", conn_type, host, port, **more)


@pytest.mark.parametrize(
    ("found", "master"),
    [
        (connection("spark", "local[2]"), "local[2]"),
        (connection("spark", "local"), "local"),
        (connection("spark", "yarn"), "yarn"),
        (connection("spark", "none"), "none"),
        (connection("spark", "spark://head", 7077), "spark://head:7077"),
        (connection("spark", "spark://one:7077,two:7077"), "spark://one:7077,two:7077"),
        (connection("spark", "head", 7077), "spark://head:7077"),
        (connection("spark", "k8s://https://api", 6443), "k8s://https://api:6443"),
        (connection("k8s", "https://api", 6443), "k8s://https://api:6443"),
        (connection("spark", "sc://connect:15002"), "sc://connect:15002"),
        (connection("generic", "local[2]"), "local[2]"),
        (connection("generic", "spark://head", 7077), "spark://head:7077"),
        (connection("generic", "sc://connect", 15002, password="a b"), "sc://connect:15002/;token=a%20b"),
        (connection("spark_connect", "connect", 15002), "sc://connect:15002"),
        (connection("spark_connect", "sc://connect", 15002), "sc://connect:15002"),
        (
            connection(
                "spark_connect", "connect", 15002, login="ann", password="a b", extras={"use_ssl": True}
            ),
            "sc://connect:15002/;user_id=ann;token=a%20b;use_ssl=True",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_host_port_and_scheme_make_the_master(found: Callable[[], dict[str, object]], master: str) -> None:
    assert settings_at(DSN, found()).spark_master == master


def test_it_outranks_the_environment_and_the_extra_of_the_database_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_MASTER", "local[1]")
    extras = {"spark_master": "local[2]", "sslmode": "require"}

    settings = settings_at(DSN, {**extras, **connection("spark", "local[3]")()})

    assert settings.spark_master == "local[3]"


def test_extras_of_spark_are_its_settings_and_the_providers_own_mean_what_they_mean_there() -> None:
    extras = {"spark.cores.max": 2, "queue": "fast", "namespace": "cleave", "spark-binary": "spark-submit"}

    settings = settings_at(DSN, connection("spark", "yarn", extras=extras)())

    assert settings.spark_conf == {
        "spark.cores.max": "2",
        "spark.yarn.queue": "fast",
        "spark.kubernetes.namespace": "cleave",
    }


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (connection("spark"), "gives the master 'spark://'; use local"),
        (connection("spark", "head"), "gives the master 'head'"),
        (connection("spark", "mesos://head", 5050), "gives the master 'mesos://head:5050'"),
        (connection("spark", "local[many]"), r"gives the master 'local\[many\]'"),
        (connection("generic", "head", 7077), "of type generic gives the master 'generic://head:7077'; use"),
        (connection("http", "head", 80), "of type http gives the master 'http://head:80'"),
        (connection("spark_connect", "connect", password="secret"), "gives the master 'sc://connect/'; use"),
        (connection("spark", "yarn", extras={"deploy-mode": "cluster"}), "deploy-mode cluster"),
        (connection("spark", "yarn", extras={"keytab": "c2VjcmV0"}), "KRB5CCNAME"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_serve_is_named_in_one_line_without_secrets(
    found: Callable[[], dict[str, object]], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        found()

    assert "connection 'cleave_spark'" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)
