"""Checks of the Pulsar cluster: its availability, and the settings that segments need in the namespaces in
use. A check returns its result as a sentence; `namespaces` returns findings.

The checks change nothing. With `--fix` they apply the missing settings that Cleave may set, and report them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from controller.bootstrap import Application, pulsar_access
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.requirements import Namespaces, Severity, Unmet
from controller.doctor.findings import Finding, Note
from controller.domain.errors import CleaveError, StoreUnavailable, Terminal
from controller.questions.question import read_answers
from controller.questions.topics import LIST_NAMESPACES

PULSAR_PLANES = ("pulsar", "pulsar_scalable")
"""Data planes that need a Pulsar cluster."""
LONGEST_CALL_SECONDS = 3.0
"""Upper limit of `call_timeout_seconds` for a call of a check, because the end of the process waits for calls."""


def cluster(cleave: Application) -> str:
    """Return a sentence with the broker's version and the admin address. If no cluster is configured, raises Terminal if
    a topic is on a data plane of `PULSAR_PLANES`, otherwise Note, also if the database, which knows the topics, is
    unavailable. Raises CleaveError if no broker answers.
    """
    access = pulsar_access(cleave.settings)
    if access is None:
        for data_plane in PULSAR_PLANES:
            if in_use := _namespaces_in_use(cleave, data_plane):
                raise Terminal(
                    f"topics of {', '.join(in_use)} are on data plane {data_plane!r} and CLEAVE_PULSAR_ADMIN_URL is not set here"
                )
        raise Note("CLEAVE_PULSAR_ADMIN_URL is not set: no Pulsar cluster is used")
    return broker(access, min(cleave.settings.call_timeout_seconds, LONGEST_CALL_SECONDS))


def isolation(cleave: Application) -> str:
    """Check that every isolation policy of the cluster names an active broker. Return the number of policies as text, or
    `none` if there are none. Raises Note with the policies that name no active broker, if no cluster is configured, or if
    the cluster refuses to list the policies; Retryable if no broker answers.
    """
    from controller.bundles.bootstrap import bundles_of
    from controller.bundles.domain.placement_rules import PlacementRules

    if pulsar_access(cleave.settings) is None:
        raise Note("CLEAVE_PULSAR_ADMIN_URL is not set: not checked")
    timeout_seconds = min(cleave.settings.call_timeout_seconds, LONGEST_CALL_SECONDS)
    application = replace(
        cleave, settings=cleave.settings.model_copy(update={"call_timeout_seconds": timeout_seconds})
    )
    with bundles_of(application) as bundles:
        try:
            policies = bundles.reader.isolation_policies()
        except Terminal as error:
            raise Note(f"not checked: {error}") from error
        active = frozenset(broker.name for broker in bundles.reader.brokers())
    without_broker = PlacementRules(active, policies).without_broker
    if without_broker:
        policy_texts = "; ".join(
            f"{policy.name} (primary {', '.join(policy.primary)})" for policy in without_broker
        )
        raise Note(
            f"isolation policies that match none of {len(active)} active brokers, so no bundle of their namespaces has a place: {policy_texts}. "
            "Their expressions are matched with the whole host, without the port"
        )
    return f"{len(policies)}, each with an active broker" if policies else "none"


def broker(access: PulsarAccess, call_timeout_seconds: float) -> str:
    """Return a sentence with the broker's version and the admin address. Raises CleaveError if no broker answers."""
    namespaces = Namespaces(access, call_timeout_seconds=call_timeout_seconds)
    try:
        version = namespaces.broker_version()
    finally:
        namespaces.close()
    return f"Pulsar {version} at {access.admin_url}"


def namespaces(cleave: Application, requested: Sequence[str], *, fix: bool, due_at: float) -> list[Finding]:
    """Return one finding for each requirement that a namespace does not meet, and one for each namespace that meets all
    of them. With `fix`, apply the missing settings that Cleave may set, and report the applied settings as `ok`. Without
    a configured cluster, return a finding of level `wrong` for each requested namespace.

    The function checks the `requested` namespaces first, then those of topics on `pulsar`, unless the database is
    unavailable. It begins no namespace after `due_at` (`time.monotonic` seconds), and returns a finding about the
    namespaces that were not checked.
    """
    access = pulsar_access(cleave.settings)
    if access is None:
        return [
            Finding(f"pulsar {namespace}", "wrong", "CLEAVE_PULSAR_ADMIN_URL is not set")
            for namespace in requested
        ]
    timeout_seconds = cleave.settings.call_timeout_seconds
    requirements = Namespaces(
        access, call_timeout_seconds=timeout_seconds if fix else min(timeout_seconds, LONGEST_CALL_SECONDS)
    )
    findings: list[Finding] = []
    try:
        in_use = sorted({*_namespaces_in_use(cleave, "pulsar")} - {*requested})
        pending = [*sorted(set(requested)), *in_use]
        while pending and time.monotonic() < due_at:
            findings += _check_namespace(requirements, pending.pop(0), fix=fix)
        if pending:
            findings.append(_unchecked(pending))
    finally:
        requirements.close()
    return findings


def not_checked(requested: Sequence[str], wrong: Sequence[str]) -> list[Finding]:
    """Return a finding for each requested namespace: it was not checked, because the checks `wrong` have failed."""
    reason = f"neither checked nor set; first correct what is wrong under {', '.join(wrong)}"
    return [Finding(f"pulsar {namespace}", "wrong", reason) for namespace in requested]


def _unchecked(pending: Sequence[str]) -> Finding:
    """Return the finding about namespaces that were not checked in time."""
    return Finding(
        "pulsar namespaces",
        "note",
        f"{len(pending)} namespaces were not checked in time ({pending[0]} first); name the ones to check with --namespace",
    )


def _check_namespace(requirements: Namespaces, namespace: str, *, fix: bool) -> list[Finding]:
    """Return the findings about one namespace: its unmet requirements, or one finding of level `ok`. With `fix`, apply
    the missing settings that Cleave may set. An error of the cluster becomes a finding of level `wrong`.
    """
    check = f"pulsar {namespace}"
    try:
        unmet_demands = requirements.check(namespace, fix=fix)
    except CleaveError as error:
        return [Finding(check, "wrong", str(error))]
    return [_finding(check, unmet) for unmet in unmet_demands] or [
        Finding(check, "ok", "set as segments need it")
    ]


def _finding(check: str, unmet: Unmet) -> Finding:
    """Return the finding about one requirement that was not met: the setting that has been applied, or what is missing
    and why it is needed. The latter names `cleave doctor --fix` if Cleave may apply the setting.
    """
    demand = unmet.demand
    if unmet.set_now:
        return Finding(check, "ok", f"set now: {demand.name}")
    remedy = "" if demand.path is None else "; `cleave doctor --fix` sets it"
    level = "wrong" if demand.severity is Severity.WRONG else "note"
    return Finding(check, level, f"not so: {demand.name}; {demand.why}{remedy}")


def _namespaces_in_use(cleave: Application, data_plane: str) -> list[str]:
    """Return the namespaces of topics on the data plane. Empty if the database is unavailable, which another check reports."""
    try:
        with cleave.store.transaction() as tx:
            return [row["namespace"] for row in read_answers(tx, LIST_NAMESPACES, data_plane=data_plane)]
    except StoreUnavailable:
        return []
