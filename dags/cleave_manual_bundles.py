"""Bundles by hand, three forms: split one, unload one, approve what the balancer proposed."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, cleave_task, dry_run_param, form, request

from controller.entrypoints import tasks

BUNDLE = Param(
    type="string",
    title="Bundle",
    description="tenant/namespace/0x00000000_0x40000000, or LARGEST or HOT behind the namespace.",
    pattern=r"^\s*[^/\s]+/[^/\s]+/(0x[0-9a-f]{8}_0x[0-9a-f]{8}|LARGEST|HOT)\s*$",
)
ALGORITHM = Param(
    None,
    type=["null", "string"],
    title="Algorithm",
    description="By name, as in the setting bundle_split_algorithms; empty: what the other fields imply.",
)
POSITIONS = Param(
    None,
    type=["null", "array"],
    items={"type": "string"},
    title="Positions",
    description="One a line: where to cut, 0x40000000.",
)
TOPICS = Param(
    None,
    type=["null", "array"],
    items={"type": "string"},
    title="Topics",
    description="One a line: topics to isolate, or to divide by.",
)
PARTS = Param(2, type="integer", minimum=2, maximum=128, title="Parts", description="Of an even division.")
UNLOAD = Param(
    False, type="boolean", title="Unload the parts", description="At once, so that they find owners anew."
)
DESTINATION = Param(
    None,
    type=["null", "string"],
    title="Destination",
    description="host:port as brokers are listed; empty: where the brokers choose.",
)
PROPOSALS = Param(
    type="array",
    items={"type": "integer"},
    title="Proposals",
    description="One a line: ids of inspect.bundles_proposals.",
)
REFUSE = Param(
    None,
    type=["null", "string"],
    title="Refuse, because",
    description="Empty: approve them. Else refuse them.",
)
SPLIT_DOC = (
    "Split a bundle where an algorithm, positions or topics say. *Dry run* shows the parts and their load."
)
UNLOAD_DOC = "Take a bundle from its owner, towards a broker if one is named. *Dry run* shows who owns it."
APPROVE_DOC = "Approve or refuse what `bundle_balance` proposed; its next run carries it out."


@dag(
    dag_display_name="Cleave: split a bundle",
    **form(
        SPLIT_DOC,
        bundle=BUNDLE,
        algorithm=ALGORITHM,
        positions=POSITIONS,
        topics=TOPICS,
        parts=PARTS,
        unload=UNLOAD,
        dry_run=dry_run_param(),
    ),
)
def bundle_split() -> None:
    @cleave_task(priority=10)
    def split(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.split_bundle(**access(), params=dict(params))

    split()


@dag(
    dag_display_name="Cleave: unload a bundle",
    **form(UNLOAD_DOC, bundle=BUNDLE, destination=DESTINATION, dry_run=dry_run_param()),
)
def bundle_unload() -> None:
    @cleave_task(priority=10)
    def unload(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.unload_bundle(**access(), params=dict(params))

    unload()


@dag(
    dag_display_name="Cleave: approve bundle proposals",
    **form(APPROVE_DOC, proposals=PROPOSALS, refuse=REFUSE),
)
def bundle_approve() -> None:
    @cleave_task(priority=10)
    def approve(params: dict[str, Any]) -> list[dict[str, Any]]:
        return tasks.approve_bundles(**access(), actor=request()["actor"], params=dict(params))

    approve()


bundle_split()
bundle_unload()
bundle_approve()
