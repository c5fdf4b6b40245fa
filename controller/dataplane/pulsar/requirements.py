"""Defines the settings that a namespace needs so that its segments are safe: one table of demands, which is
checked and applied.

A segment is an ordinary topic, so a broker may treat it as any other topic. The demands keep brokers from
deleting segments or subscriptions on their own, from creating a deleted segment again, and from storing a
repeated batch twice. A setting is changed only on request (`cleave doctor --fix`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.broker_versions import VERSION, holds_gates, reads_after_reload
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.http_errors import UnknownAddress, refusal
from controller.dataplane.pulsar.names import namespace_path
from controller.dataplane.pulsar.topic_requests import GONE
from controller.domain.errors import Unsupported

INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}
RETENTION = {"retentionTimeInMinutes": 1440, "retentionSizeInMB": -1}
"""One day: enough to go back after a faulty release, and bounded."""
_REFUSES_TO_SHOW = frozenset({401, 403})
_NO_SUCH_CALL = 405
_DEFAULT_QUOTAS: Mapping[str, tuple[str, ...]] = {
    "destination_storage": ("backlogQuotaDefaultLimitGB", "backlogQuotaDefaultLimitBytes"),
    "message_age": ("backlogQuotaDefaultLimitSecond",),
}
"""Settings of the brokers that limit the backlog of a topic, by the type of the quota."""


class Severity(StrEnum):
    """Severity of an unmet demand."""

    WRONG = "wrong"
    """Data or a segment can be lost, or an operation cannot end."""
    NOTE = "note"
    """Everything works, but the operator should know the cost."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Settings of a namespace, and the brokers' defaults for missing settings."""

    policies: Mapping[str, Any]
    broker: Mapping[str, str]
    """Runtime configuration of the brokers. Empty if the token may not read it, which counts as the
    defaults.
    """
    encrypts: bool = False
    """True if producers with these settings encrypt."""
    version: str = ""
    """Version of the broker that answered: `4.2.4`."""
    policy_status: int = 404
    """Status of the answer to a request for a policy of a topic that does not exist."""

    def of_broker(self, key: str, default: str) -> str:
        """Return the value of `key` in the brokers' configuration, in lower case; `default` if the key is
        missing.
        """
        return str(self.broker.get(key, default)).strip().lower()


@dataclass(frozen=True, slots=True)
class Demand:
    """A required setting. `is_met` returns True for a namespace that has the setting, and `why` says what
    happens otherwise. `path` and `value` are the call that corrects the setting; None if only a person may.
    """

    name: str
    severity: Severity
    is_met: Callable[[Namespace], bool]
    why: str
    path: str | None = None
    value: object = None


@dataclass(frozen=True, slots=True)
class Unmet:
    """A demand that a namespace does not meet. `set_now` is True if the setting has been corrected."""

    namespace: str
    demand: Demand
    set_now: bool = False


def _no_auto_creation(namespace: Namespace) -> bool:
    """Return True if clients cannot create topics: by the namespace's own policy, if it has one, otherwise by
    the brokers' configuration. False if neither says so.
    """
    override = namespace.policies.get("autoTopicCreationOverride")
    if override is not None:
        return not override.get("allowAutoTopicCreation", True)
    return namespace.of_broker("allowAutoTopicCreation", "true") == "false"


def _keeps_inactive(namespace: Namespace) -> bool:
    """Return True if brokers do not delete inactive topics: by the namespace's own policy, if it has one,
    otherwise by the brokers' configuration. False if neither says so.
    """
    policy = namespace.policies.get("inactive_topic_policies")
    if policy is not None:
        return not policy.get("deleteWhileInactive", True)
    return namespace.of_broker("brokerDeleteInactiveTopicsEnabled", "true") == "false"


def _keeps_subscriptions(namespace: Namespace) -> bool:
    """Return True if unused subscriptions do not expire: the time until the expiration is 0 minutes or less. The
    namespace's own policy decides; without a policy, the brokers' configuration. True if neither gives a time.
    """
    minutes = namespace.policies.get("subscription_expiration_time_minutes")
    if minutes is None:
        minutes = namespace.of_broker("subscriptionExpirationTimeMinutes", "0")
    return int(minutes) <= 0


def _deduplicates(namespace: Namespace) -> bool:
    """Return True if brokers store a repeated message once. The namespace's own policy decides; without a policy, the
    brokers' configuration. False if neither says so.
    """
    own = namespace.policies.get("deduplicationEnabled")
    return (
        bool(own) if own is not None else namespace.of_broker("brokerDeduplicationEnabled", "false") == "true"
    )


def _retains(namespace: Namespace) -> bool:
    """Return True if acknowledged messages are kept for a time other than 0 minutes; a negative number means without
    a limit. The namespace's own policy decides; without a policy, the brokers' configuration. False if neither gives
    a time.
    """
    own = namespace.policies.get("retention_policies")
    minutes = (
        own["retentionTimeInMinutes"] if own else namespace.of_broker("defaultRetentionTimeInMinutes", "0")
    )
    return int(minutes) != 0


def _takes_bytes(namespace: Namespace) -> bool:
    """Return True if producers without a schema are admitted."""
    return not namespace.policies.get("schema_validation_enforced")


def _takes_schemas(namespace: Namespace) -> bool:
    """Return True if a producer may register a schema for a topic."""
    return namespace.policies.get("is_allow_auto_update_schema") is not False


def _takes_clear_messages(namespace: Namespace) -> bool:
    """Return True if producers with these settings encrypt, or neither the namespace nor the brokers require
    encryption.
    """
    is_required = namespace.of_broker("encryptionRequireOnProducer", "false") == "true"
    return namespace.encrypts or not (is_required or namespace.policies.get("encryption_required"))


def _evicts_nothing(namespace: Namespace) -> bool:
    """Return True if no backlog quota deletes unread messages. The namespace's own quota of each type decides; without
    one, the brokers' default quota, if its limit is above 0.
    """
    own = namespace.policies.get("backlog_quota_map") or {}
    policies = {quota.get("policy") for quota in own.values()}
    for kind, limits in _DEFAULT_QUOTAS.items():
        if kind not in own and any(float(namespace.of_broker(limit, "-1")) > 0 for limit in limits):
            policies.add(namespace.of_broker("backlogQuotaDefaultRetentionPolicy", ""))
    return "consumer_backlog_eviction" not in policies


def _expires_nothing(namespace: Namespace) -> bool:
    """Return True if unread messages never expire: their time to live is 0 seconds or less. The namespace's own
    policy decides; without a policy, the brokers' configuration. True if neither gives a time.
    """
    own = namespace.policies.get("message_ttl_in_seconds")
    return int(own if own is not None else namespace.of_broker("ttlDurationDefaultInSeconds", "0")) <= 0


def _admits(namespace: Namespace, kind: str) -> bool:
    """Return True if the namespace admits subscriptions of a type, such as `exclusive`. The namespace's own list of types
    decides; without types in it, the brokers' list. True if the brokers' list is unknown.
    """
    own = namespace.policies.get("subscription_types_enabled")
    types = " ".join(own).lower() if own else namespace.of_broker("subscriptionTypesEnabled", "")
    return not types or kind in re.findall(r"\w+", types)


def _allows_key_shared(namespace: Namespace) -> bool:
    """Return True if the namespace and the brokers admit Key_Shared consumers."""
    is_enabled = namespace.of_broker("subscriptionKeySharedEnable", "true") == "true"
    return is_enabled and _admits(namespace, "key_shared")


def _acknowledges_in_part(namespace: Namespace) -> bool:
    """Return True if brokers acknowledge batches in part. False if the token may not read the configuration,
    because the defaults of brokers differ.
    """
    if not namespace.broker:
        return False
    return namespace.of_broker("acknowledgmentAtBatchIndexLevelEnabled", "true") == "true"


GATE_DEMANDS: tuple[Demand, ...] = (
    Demand(
        "gates hold on brokers of this version",
        Severity.NOTE,
        lambda seen: holds_gates(seen.version),
        "subscriptions that standard clients read in the order of keys are refused: an older broker sends a consumer that has "
        "just connected messages in spite of a closed gate; update the brokers to 4.0.7 or later",
    ),
    Demand(
        "topics have policies",
        Severity.NOTE,
        lambda seen: (
            seen.policy_status != _NO_SUCH_CALL
            and seen.of_broker("topicLevelPoliciesEnabled", "true") == "true"
            and seen.of_broker("systemTopicEnabled", "true") == "true"
        ),
        "subscriptions that standard clients read in the order of keys are refused: set topicLevelPoliciesEnabled=true and "
        "systemTopicEnabled=true in the brokers' configuration",
    ),
    Demand(
        "dispatch rates hold without a backlog",
        Severity.NOTE,
        lambda seen: seen.of_broker("dispatchThrottlingOnNonBacklogConsumerEnabled", "true") == "true",
        "subscriptions that standard clients read in the order of keys are refused: set "
        "dispatchThrottlingOnNonBacklogConsumerEnabled=true in the brokers' configuration",
    ),
    Demand(
        "Cleave may set policies of topics",
        Severity.NOTE,
        lambda seen: seen.policy_status not in _REFUSES_TO_SHOW,
        "subscriptions that standard clients read in the order of keys are refused: make the role of Cleave's token an admin of the "
        "tenant",
    ),
)
"""What a gate needs; see `gates`. A namespace that meets these demands can have subscriptions for standard clients."""

DEMANDS: tuple[Demand, ...] = (
    Demand(
        "sealed segments can be read after a load",
        Severity.WRONG,
        lambda seen: reads_after_reload(seen.version),
        "a broker of this version delivers nothing of a terminated topic that it has loaded again, as after a restart "
        "(apache/pulsar#24063), so consumers wait for a sealed segment forever; update the brokers to 3.0.11, 3.3.6, 4.0.4 or later",
    ),
    Demand(
        "topics on demand are off",
        Severity.WRONG,
        _no_auto_creation,
        "a client that is still connected would create a deleted segment again, as an empty topic",
        "autoTopicCreation",
        {"allowAutoTopicCreation": False},
    ),
    Demand(
        "inactive topics are kept",
        Severity.WRONG,
        _keeps_inactive,
        "the broker would delete a segment that no client uses for a while, and with it a range of keys",
        "inactiveTopicPolicies",
        INACTIVE,
    ),
    Demand(
        "subscriptions do not expire",
        Severity.WRONG,
        _keeps_subscriptions,
        "a subscription that waits for its segment's turn would lose its position, and with it messages",
        "subscriptionExpirationTime",
        0,
    ),
    Demand(
        "deduplication is on",
        Severity.NOTE,
        _deduplicates,
        "a batch repeated after a lost answer may be stored twice",
        "deduplication",
        True,
    ),
    Demand(
        "acknowledged messages are retained",
        Severity.NOTE,
        _retains,
        "a seek can go back no further than to what some subscription has not acknowledged",
        "retention",
        RETENTION,
    ),
    Demand(
        "schemas are not enforced",
        Severity.NOTE,
        _takes_bytes,
        "producers without a schema are refused, Cleave's own among them",
        "schemaValidationEnforced",
        False,
    ),
    Demand(
        "brokers do not enforce schemas",
        Severity.NOTE,
        lambda namespace: namespace.of_broker("isSchemaValidationEnforced", "false") == "false",
        "producers without a schema, Cleave's own among them, are refused for a segment that has one: set "
        "isSchemaValidationEnforced=false in the brokers' configuration",
    ),
    Demand(
        "new schemas are allowed",
        Severity.WRONG,
        _takes_schemas,
        "a new segment has no schema yet, and its first producer could not register one",
        "isAllowAutoUpdateSchema",
        True,
    ),
    Demand(
        "encryption is not required, or producers encrypt",
        Severity.NOTE,
        _takes_clear_messages,
        "producers that send in the clear are refused: set CLEAVE_PULSAR_ENCRYPTION_KEY and "
        "CLEAVE_PULSAR_ENCRYPTION_PUBLIC_KEY_FILE where applications produce",
    ),
    Demand(
        "nothing unread is evicted",
        Severity.NOTE,
        _evicts_nothing,
        "the backlog quota, the namespace's or the brokers' default, drops the oldest unread messages of a slow "
        "subscription; change its policy if that is not meant",
    ),
    Demand(
        "messages do not expire unread",
        Severity.NOTE,
        _expires_nothing,
        "the time to live counts expired messages as read; leave it only if that is meant",
    ),
    Demand(
        "exclusive consumers are allowed",
        Severity.WRONG,
        lambda namespace: _admits(namespace, "exclusive"),
        "Cleave's consumers could not read; add Exclusive to the namespace's subscription types",
    ),
    Demand(
        "key-shared consumers are allowed",
        Severity.NOTE,
        _allows_key_shared,
        "several consumers could not share one segment by its entry buckets; add Key_Shared to the namespace's "
        "subscription types, and check subscriptionKeySharedEnable in the brokers' configuration",
    ),
    Demand(
        "batches are acknowledged in part",
        Severity.NOTE,
        _acknowledges_in_part,
        "a batch that a reader leaves in the middle would be delivered whole again, if "
        "acknowledgmentAtBatchIndexLevelEnabled is false in the brokers' configuration; check it there if this token may "
        "not",
    ),
    Demand(
        "brokers report single topics",
        Severity.NOTE,
        lambda namespace: namespace.of_broker("exposeTopicLevelMetricsInPrometheus", "true") == "true",
        "from CLEAVE_PULSAR_PAGES_FROM_SEGMENTS segments on (200 by default) no load would be known: set "
        "exposeTopicLevelMetricsInPrometheus=true in the brokers' configuration",
    ),
    Demand(
        "one cluster only",
        Severity.WRONG,
        lambda namespace: len(namespace.policies.get("replication_clusters") or ["one"]) == 1,
        "the end of a segment is not replicated to other clusters, so its keys would go on there; use a namespace of "
        "one cluster",
    ),
    *GATE_DEMANDS,
)


def demand_gates(access: PulsarAccess, admin: AdminCalls, namespace: str) -> None:
    """Return if topics of the namespace (`tenant/name`) can have gates. Changes nothing. Raises Unsupported if
    `access` has no binary address, and for the first demand of `GATE_DEMANDS` that is not met, which the message
    names.

    Raises InvalidInput for an invalid name; NotFound if the namespace does not exist; DataPlaneTimeout at the
    deadline; and the other errors of `AdminCalls.ask`.
    """
    if access.service_url is None:
        raise Unsupported(
            f"gates of {namespace} need the brokers' binary address: set CLEAVE_PULSAR_SERVICE_URL"
        )
    brokers = _read_brokers(admin, namespace_path(namespace), admin.deadline())
    for demand in GATE_DEMANDS:
        if not demand.is_met(brokers):
            raise Unsupported(
                f"namespace {namespace} cannot have gates (not so: {demand.name}): {demand.why}"
            )


class Namespaces:
    """Checks namespaces with an admin's rights, and changes settings on request."""

    def __init__(self, access: PulsarAccess, *, call_timeout_seconds: float = 5.0) -> None:
        self._admin = AdminCalls(access, call_timeout_seconds=call_timeout_seconds)
        self._encrypts = access.encryption_key is not None

    def check(self, namespace: str, *, fix: bool = False) -> tuple[Unmet, ...]:
        """Return the demands of `DEMANDS` that the namespace (`tenant/name`) does not meet when the call begins, in
        the order of the table. Empty if all demands are met. With `fix`, also change each setting that Cleave may
        change to what the demand requires, and return these demands with `set_now` True. Without `fix`, nothing is
        changed.

        Raises InvalidInput for an invalid name; NotFound for a namespace that does not exist; DataPlaneTimeout at the
        deadline; and the other errors of `AdminCalls.ask`. After an error, some settings may be changed.
        """
        deadline, path = self._admin.deadline(), namespace_path(namespace)
        settings = _read(self._admin, path, deadline, encrypts=self._encrypts)
        unmet = [Unmet(namespace, demand) for demand in DEMANDS if not demand.is_met(settings)]
        if not fix:
            return tuple(unmet)
        return tuple(self._set(path, demand, deadline) for demand in unmet)

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def broker_version(self) -> str:
        """Return the broker's version, such as `4.2.4`."""
        return str(self._admin.ask(VERSION, self._admin.deadline()).document)

    def _set(self, path: str, unmet: Unmet, deadline: Deadline) -> Unmet:
        """Change the setting of the namespace at `path` (`tenant/name`) to the value that the demand requires, and
        return a copy of `unmet` whose `set_now` is True. If only a person may correct the setting, change nothing and
        return `unmet` itself. Raises DataPlaneTimeout at the deadline, and the other errors of `AdminCalls.ask`.
        """
        demand = unmet.demand
        if demand.path is None:
            return unmet
        purpose = f"set {demand.path} of namespace {path}"
        self._admin.ask(Ask("POST", f"namespaces/{path}/{demand.path}", purpose, body=demand.value), deadline)
        return Unmet(unmet.namespace, demand, set_now=True)


def _read(admin: AdminCalls, path: str, deadline: Deadline, *, encrypts: bool) -> Namespace:
    """Return the policies of the namespace at `path` (`tenant/name`) and the brokers' settings as a `Namespace` with
    the given `encrypts`. Raises NotFound for a missing namespace; a Terminal error if the token may not read the
    policies; DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.ask`.
    """
    policies = admin.ask(
        Ask("GET", f"namespaces/{path}", f"read the settings of namespace {path}"), deadline
    ).document
    return replace(_read_brokers(admin, path, deadline), policies=policies, encrypts=encrypts)


def _read_brokers(admin: AdminCalls, path: str, deadline: Deadline) -> Namespace:
    """Return the brokers' settings as a `Namespace`. Its `policies` are empty, because reading them needs more
    rights, and its `encrypts` is False. `broker` and `version` are empty if the token may not read them. `path` is
    `tenant/name`. Raises NotFound for a missing namespace; DataPlaneTimeout at the deadline; and the other errors of
    `AdminCalls.ask`.
    """
    runtime = admin.ask(
        Ask(
            "GET",
            "brokers/configuration/runtime",
            "read the broker's configuration",
            accept=_REFUSES_TO_SHOW,
        ),
        deadline,
    )
    broker = {} if runtime.status in _REFUSES_TO_SHOW else runtime.document
    answer = admin.ask(replace(VERSION, accept=_REFUSES_TO_SHOW), deadline)
    version = "" if answer.status in _REFUSES_TO_SHOW else str(answer.document)
    return Namespace({}, broker, version=version, policy_status=_policy_status(admin, path, deadline))


def _policy_status(admin: AdminCalls, path: str, deadline: Deadline) -> int:
    """Request the policy of a topic that does not exist, and return the status of the answer: 404 if the brokers have
    policies of topics; 405 if they have no such call; 401 or 403 if the token lacks the right. The broker checks the
    right first, and the same right is needed to set a policy. `path` is `tenant/name`.

    Raises NotFound for a missing namespace; DataPlaneTimeout at the deadline; and the other errors of
    `AdminCalls.ask`.
    """
    purpose = f"read a topic's policy in namespace {path}"
    question = f"persistent/{path}/cleave.no-topic/cleave/dispatchRate"
    ask = Ask("GET", question, purpose, accept={*_REFUSES_TO_SHOW, *GONE, _NO_SUCH_CALL})
    try:
        answer = admin.ask(ask, deadline)
    except UnknownAddress:
        return _NO_SUCH_CALL
    reason = str(answer.document["reason"]) if answer.status in GONE else "topic"
    if not reason.lower().startswith("topic"):
        raise refusal(purpose, answer.status, reason)
    return answer.status
