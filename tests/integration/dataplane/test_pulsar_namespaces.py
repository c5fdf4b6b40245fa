"""`cleave doctor` on real namespaces: what segments need is looked at, said, and set when somebody asks for it."""

from __future__ import annotations

import json
import secrets

import pytest

from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.pulsar_namespaces import make_namespace


def findings(setup: PulsarSetup, *arguments: str) -> dict[str, list[tuple[str, str]]]:
    """Levels and sentences by check, whatever the exit code."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row in json.loads(setup.cleave("doctor", "--json", *arguments).out):
        found.setdefault(row["check"], []).append((row["level"], row["finding"]))
    return found


@pytest.fixture
def bare(setup: PulsarSetup) -> str:
    """A namespace as `pulsar-admin namespaces create` leaves it."""
    return make_namespace(setup.access, f"bare-{secrets.token_hex(4)}", fixed=False)


def test_the_cluster_and_the_namespaces_of_its_topics_are_looked_at(setup: PulsarSetup) -> None:
    assert f"pulsar {setup.namespace}" not in findings(setup)
    setup.create(1)

    found = findings(setup)

    assert found["pulsar"] == [("ok", f"Pulsar 4.2.4 at {setup.access.admin_url}")]
    assert found[f"pulsar {setup.namespace}"] == [("ok", "set as segments need it")]


def test_a_bare_namespace_is_told_what_it_lacks_and_left_as_it_is(setup: PulsarSetup, bare: str) -> None:
    before = setup.admin("GET", f"namespaces/{bare}").json()

    found = findings(setup, "--namespace", bare)[f"pulsar {bare}"]

    levels = {sentence.split(";")[0]: level for level, sentence in found}
    assert levels["not so: topics on demand are off"] == "wrong"
    assert levels["not so: deduplication is on"] == "note"
    assert all("`cleave doctor --fix` sets it" in sentence for _, sentence in found)
    assert setup.cleave("doctor", "--namespace", bare).code == 1
    assert setup.admin("GET", f"namespaces/{bare}").json() == before


def test_asked_to_it_sets_them_once(setup: PulsarSetup, bare: str) -> None:
    set_now = findings(setup, "--fix", "--namespace", bare)[f"pulsar {bare}"]

    assert {level for level, _ in set_now} == {"ok"}
    assert ("ok", "set now: topics on demand are off") in set_now
    policies = setup.admin("GET", f"namespaces/{bare}").json()
    assert policies["autoTopicCreationOverride"]["allowAutoTopicCreation"] is False
    assert policies["deduplicationEnabled"] is True
    assert findings(setup, "--fix", "--namespace", bare)[f"pulsar {bare}"] == [
        ("ok", "set as segments need it")
    ]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("messageTTL", 60, "messages do not expire unread"),
        ("subscriptionTypesEnabled", ["Key_Shared"], "exclusive consumers are allowed"),
        ("subscriptionTypesEnabled", ["Exclusive"], "key-shared consumers are allowed"),
        (
            "backlogQuota?backlogQuotaType=destination_storage",
            {"limitSize": 1 << 30, "policy": "consumer_backlog_eviction"},
            "nothing unread is evicted",
        ),
    ],
)
def test_what_is_a_persons_to_decide_is_said_and_never_set(
    setup: PulsarSetup, path: str, value: object, said: str
) -> None:
    setup.admin("POST", f"namespaces/{setup.namespace}/{path}", json=value)

    [(_, sentence)] = findings(setup, "--fix", "--namespace", setup.namespace)[f"pulsar {setup.namespace}"]

    assert said in sentence
    assert "--fix" not in sentence


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            "inactiveTopicPolicies",
            {
                "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                "maxInactiveDurationSeconds": 60,
                "deleteWhileInactive": True,
            },
            "inactive topics are kept",
        ),
        ("subscriptionExpirationTime", 5, "subscriptions do not expire"),
        ("isAllowAutoUpdateSchema", False, "new schemas are allowed"),
        ("schemaValidationEnforced", True, "schemas are not enforced"),
        (
            "retention",
            {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
            "acknowledged messages are retained",
        ),
    ],
)
def test_what_would_lose_segments_is_found_and_put_right(
    setup: PulsarSetup, path: str, value: object, said: str
) -> None:
    setup.admin("POST", f"namespaces/{setup.namespace}/{path}", json=value)
    check = f"pulsar {setup.namespace}"

    [(_, sentence)] = findings(setup, "--namespace", setup.namespace)[check]
    assert said in sentence

    assert findings(setup, "--fix", "--namespace", setup.namespace)[check] == [("ok", f"set now: {said}")]
    assert findings(setup, "--namespace", setup.namespace)[check] == [("ok", "set as segments need it")]


def test_a_namespace_that_is_not_there_is_one_line(setup: PulsarSetup) -> None:
    [(level, sentence)] = findings(setup, "--namespace", "nobody/nowhere")["pulsar nobody/nowhere"]

    assert level == "wrong"
    assert "create the tenant and namespace" in sentence


def test_topics_on_a_cluster_that_is_not_configured_here_are_told(
    setup: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.create(1)
    monkeypatch.delenv("CLEAVE_PULSAR_ADMIN_URL")
    monkeypatch.delenv("CLEAVE_PULSAR_SERVICE_URL")

    [(level, sentence)] = findings(setup)["pulsar"]

    assert (level, setup.namespace in sentence) == ("wrong", True)
