"""From settings, of the environment or of a connection's extras, to how the Pulsar cluster is reached."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from controller.bootstrap import plane_settings, pulsar_access
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.domain.errors import InvalidInput
from controller.settings import Settings, load_settings
from controller.tasks.application_of_connection import settings_at

DSN = "postgresql://airflow@db/cleave"
ADMIN = {"pulsar_admin_url": "https://one:8443,two:8443"}
Reads = Callable[[dict[str, str]], Settings]


@pytest.fixture(autouse=True)
def _house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files to name, and no setting of ours."""
    for name in [name for name in os.environ if name.startswith("CLEAVE_")]:
        monkeypatch.delenv(name)
    for name in ("token", "ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("hush\n")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["environment", "extras", ".env"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Settings from each place they may be written in."""

    def environment(given: dict[str, str]) -> Settings:
        for name, value in given.items():
            monkeypatch.setenv(f"CLEAVE_{name.upper()}", value)
        return load_settings()

    def file(given: dict[str, str]) -> Settings:
        Path(".env").write_text("".join(f"CLEAVE_{name.upper()}={value}\n" for name, value in given.items()))
        return load_settings()

    reads: dict[str, Reads] = {
        "environment": environment,
        "extras": lambda given: settings_at(DSN, given),
        ".env": file,
    }
    return reads[request.param]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"pulsar_service_url": "pulsar+ssl://one:6651"}, {"service_url": "pulsar+ssl://one:6651"}),
        ({"pulsar_token": "hush"}, {"token": "hush"}),
        ({"pulsar_token_file": "token"}, {"token_file": "token"}),
        ({"pulsar_token": "old", "pulsar_token_file": "token"}, {"token": "old", "token_file": "token"}),
        ({"pulsar_ca_file": "ca.pem"}, {"ca_file": "ca.pem"}),
        (
            {"pulsar_cert_file": "cert.pem", "pulsar_key_file": "key.pem"},
            {"cert_file": "cert.pem", "key_file": "key.pem"},
        ),
        (
            {"pulsar_encryption_key": "orders-1", "pulsar_encryption_public_key_file": "key.pem"},
            {"encryption_key": "orders-1", "encryption_public_key_file": "key.pem"},
        ),
        (
            {"pulsar_encryption_private_key_file": "key.pem"},
            {"encryption_private_key_file": "key.pem"},
        ),
        ({"pulsar_verify_hostname": "false"}, {"verify_hostname": False}),
        ({"pulsar_verify_hostname": "true"}, {"verify_hostname": True}),
    ],
    ids=lambda row: " ".join(row) or "-",
)
def test_each_setting_reaches_its_place_and_no_other(
    read: Reads, given: dict[str, str], expected: dict[str, Any]
) -> None:
    settings = read({**ADMIN, **given})

    access = PulsarAccess(admin_url=ADMIN["pulsar_admin_url"], **expected)
    assert pulsar_access(settings) == plane_settings(settings).pulsar == access
    assert "hush" not in f"{settings!r} {pulsar_access(settings)!r}"


def test_extras_may_be_json_outrank_the_environment_and_stay_out_of_the_databases_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", "http://of-the-environment:8080")
    monkeypatch.setenv("CLEAVE_PULSAR_CA_FILE", "ca.pem")

    settings = settings_at(DSN, {**ADMIN, "pulsar_verify_hostname": False, "pulsar_token": "hush"})

    assert pulsar_access(settings) == PulsarAccess(
        admin_url=ADMIN["pulsar_admin_url"], token="hush", ca_file="ca.pem", verify_hostname=False
    )
    assert settings.database_url.get_secret_value() == DSN


def test_every_field_of_the_access_has_its_setting() -> None:
    assert {f"pulsar_{field.name}" for field in fields(PulsarAccess)} <= set(Settings.model_fields)


def test_without_an_address_there_is_no_pulsar(read: Reads) -> None:
    assert pulsar_access(read({"pulsar_token": "hush"})) is None


def test_the_tokens_file_wins_and_is_read_for_each_call(read: Reads) -> None:
    access = pulsar_access(read({**ADMIN, "pulsar_token": "old", "pulsar_token_file": "token"}))

    assert access is not None
    assert (access.has_credentials, access.current_token()) == (True, "hush")
    Path("token").write_text("renewed\n")
    assert access.current_token() == "renewed"
    Path("token").unlink()
    with pytest.raises(InvalidInput, match="CLEAVE_PULSAR_TOKEN_FILE=token cannot be read"):
        access.current_token()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"pulsar_service_url": "pulsar://one:6650"},
            r"^CLEAVE_PULSAR_SERVICE_URL is set and .* is not; set",
        ),
        (
            {"pulsar_admin_url": "one:8443"},
            r"^CLEAVE_PULSAR_ADMIN_URL=one:8443 is not of the form http or https://",
        ),
        ({"pulsar_admin_url": ""}, r"^CLEAVE_PULSAR_ADMIN_URL= is not of the form http or https://"),
        (
            {"pulsar_admin_url": "https://ann:hush@one"},
            r"^CLEAVE_PULSAR_ADMIN_URL contains a user or password",
        ),
        (
            {**ADMIN, "pulsar_service_url": "https://one:6651"},
            r"^CLEAVE_PULSAR_SERVICE_URL=https://one:6651 is not of the form pulsar or pulsar",
        ),
        ({**ADMIN, "pulsar_token_file": "nowhere"}, r"^CLEAVE_PULSAR_TOKEN_FILE=nowhere: there is no such"),
        ({**ADMIN, "pulsar_token_file": "."}, r"^CLEAVE_PULSAR_TOKEN_FILE=\.: there is no such file"),
        ({**ADMIN, "pulsar_ca_file": "nowhere"}, r"^CLEAVE_PULSAR_CA_FILE=nowhere: there is no such file"),
        ({**ADMIN, "pulsar_cert_file": "cert.pem"}, r"^a client certificate needs its key: set CLEAVE_"),
        ({**ADMIN, "pulsar_key_file": "key.pem"}, r"^a client certificate needs its key: set CLEAVE_PULSAR_"),
        (
            {**ADMIN, "pulsar_cert_file": "cert.pem", "pulsar_key_file": "nowhere"},
            r"^CLEAVE_PULSAR_KEY_FILE=nowhere: there is no such file",
        ),
        (
            {**ADMIN, "pulsar_encryption_key": "orders-1"},
            r"^encryption needs a key and its name: set CLEAVE_",
        ),
        (
            {**ADMIN, "pulsar_encryption_public_key_file": "key.pem"},
            r"^encryption needs a key and its name: set CLEAVE_PULSAR_ENCRYPTION_KEY and CLEAVE_PULSAR_ENCRYPTION_PUBLIC",
        ),
        (
            {**ADMIN, "pulsar_encryption_private_key_file": "nowhere"},
            r"^CLEAVE_PULSAR_ENCRYPTION_PRIVATE_KEY_FILE=nowhere: there is no such file",
        ),
        (
            {**ADMIN, "pulsar_verify_hostname": "perhaps"},
            r"^Setting CLEAVE_PULSAR_VERIFY_HOSTNAME: .*boolean.* Correct it",
        ),
    ],
    ids=lambda row: " ".join(row) if isinstance(row, dict) else "",
)
def test_what_cannot_be_right_is_one_sentence_without_a_secret(
    read: Reads, given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence) as refused:
        pulsar_access(read(given))

    assert "\n" not in str(refused.value)
    assert "hush" not in str(refused.value)
