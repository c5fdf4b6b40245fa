"""Settings: a wrong one is named, and no error or text of a right one shows a password."""

from __future__ import annotations

import re
import traceback

import pytest

from controller.domain.errors import InvalidInput
from controller.settings import PROJECT_ROOT, Settings, load_settings


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ann:s3cret@host/db",
        "postgresql://ann:s3cret@host:port/db",
        "postgresql://host:s3cret/db",
        "s3cret",
    ],
)
@pytest.mark.parametrize("name", ["database_url", "loader_url", "embedded_url"])
def test_a_wrong_url_is_refused_by_name_and_no_traceback_shows_its_password(name: str, url: str) -> None:
    with pytest.raises(InvalidInput, match=f"CLEAVE_{name.upper()}") as refused:
        load_settings(**{name: url})
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))


def test_a_number_out_of_bounds_is_refused_with_its_bound() -> None:
    with pytest.raises(InvalidInput, match=r"CLEAVE_WORKER_SHARDS: .*less than or equal to 4096"):
        load_settings(worker_shards=5_000)


def test_no_text_of_the_settings_shows_a_password() -> None:
    settings = load_settings(database_url="postgresql://ann:s3cret@host/db", airflow_token="s3cret")
    assert "s3cret" not in f"{settings!r} {settings} {settings.database_label}"


def test_urls_that_are_not_given_are_the_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLEAVE_LOADER_URL", "CLEAVE_EMBEDDED_URL", "CLEAVE_HISTORY_URL"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings(database_url="postgresql://ann@host/db", landing_url="s3a://bucket/landing/")
    assert settings.loader_dsn == settings.embedded_dsn == "postgresql://ann@host/db"
    assert settings.history_location == "s3a://bucket/landing-history"


@pytest.mark.parametrize("name", ["BUNDLE_BALANCE", "BUNDLE_SPLIT_ALGORITHMS", "SPARK_CONF"])
def test_a_text_that_is_no_json_is_refused_by_name_and_not_quoted(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"CLEAVE_{name}", '{"password": "s3cret"')
    with pytest.raises(InvalidInput, match=f"Setting CLEAVE_{name}: the value is not JSON") as refused:
        load_settings()
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))


def test_the_chart_refuses_each_secret_among_its_legible_settings() -> None:
    template = (PROJECT_ROOT / "deploy/helm/cleave/templates/_helpers.tpl").read_text()
    [pattern] = re.findall(r'regexMatch "([^"]+)" \$name', template)
    secret = {
        f"CLEAVE_{name.upper()}": "SecretStr" in str(field.annotation)
        for name, field in Settings.model_fields.items()
    }

    assert {name for name in secret if re.search(pattern, name)} == {
        name for name, is_secret in secret.items() if is_secret
    }
