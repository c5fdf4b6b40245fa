"""From a connection's address and extras to settings."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from controller.domain.errors import InvalidInput
from controller.tasks.application_of_connection import settings_at

DSN = "postgresql://airflow:p%40ss@db/cleave"


def test_extras_named_like_a_setting_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEAVE_LANDING_URL", "of-the-environment")
    monkeypatch.setenv("CLEAVE_RETENTION_MINUTES", "5")
    monkeypatch.setenv("SPARK_MASTER", "local[1]")

    settings = settings_at(
        DSN, {"landing_url": "s3a://samples", "spark_master": "sc://spark:15002", "loader_url": DSN}
    )

    assert settings.landing_url == "s3a://samples"
    assert settings.spark_master == "sc://spark:15002"
    assert settings.loader_dsn == DSN
    assert settings.retention_minutes == 5.0


def test_any_other_extra_goes_to_libpq_with_the_address() -> None:
    settings = settings_at(DSN, {"sslmode": "require", "connect_timeout": 3})

    url = make_url(settings.database_url.get_secret_value())
    assert dict(url.query) == {"sslmode": "require", "connect_timeout": "3"}
    assert url.set(query={}).render_as_string(hide_password=False) == DSN


def test_a_wrong_setting_is_named_in_one_line() -> None:
    with pytest.raises(InvalidInput, match="CLEAVE_PASS_BATCH_TOPICS"):
        settings_at(DSN, {"pass_batch_topics": "many"})
