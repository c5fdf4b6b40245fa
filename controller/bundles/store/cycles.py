"""Cycles of the balancer: their inputs, outcomes and proposals, and the state that one cycle passes to the next.

Inputs and outcome are the domain's canonical texts, stored unchanged with the code version, so that a cycle can be
replayed bit for bit. A cycle and the state it leaves are written in one transaction, by compare-and-set on the state it
began with. Of two cycles at the same time one is written, and the other must start again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.proposals import NewProposal
from controller.domain.errors import LostRace, NotFound


@dataclass(frozen=True, slots=True)
class StateRow:
    """State that one cycle of a cluster passes to the next. `cycle_id`: the cycle that wrote the state. Before the first cycle the text is
    "{}", the version 0 and the cycle None.
    """

    cluster: str
    state: str
    cycle_id: int | None
    row_version: int


@dataclass(frozen=True, slots=True)
class StoredCycle:
    """A recorded cycle: its cluster, the version of the rules, and the texts, None after they were deleted."""

    cycle_id: int
    cluster: str
    code_version: str
    inputs: str | None
    outcome: str | None


_GET = text("""
    SELECT cycle_id, cluster, code_version, inputs, outcome FROM cleave.bundle_decision WHERE cycle_id = :cycle_id
""")
_BY_REQUEST = text("""
    SELECT cycle_id FROM cleave.bundle_decision WHERE request_key = :request_key AND cluster = :cluster
""")
_RECORD = text("""
    INSERT INTO cleave.bundle_decision
           (cluster, request_key, decided_at, decided_by, code_version, inputs, outcome, refusals)
    VALUES (:cluster, :request_key, :decided_at, :decided_by, :code_version, :inputs, :outcome,
            CAST(:refusals AS jsonb))
    RETURNING cycle_id
""")
_STATE = text(
    "SELECT cluster, state, cycle_id, row_version FROM cleave.bundle_state WHERE cluster = :cluster"
)
# Version 0 is that of a state that is not stored, so only then a row may be inserted.
_SET_STATE = text("""
    INSERT INTO cleave.bundle_state AS s (cluster, state, cycle_id)
    SELECT :cluster, :state, :cycle_id
     WHERE :seen = 0 OR EXISTS (SELECT FROM cleave.bundle_state WHERE cluster = :cluster)
    ON CONFLICT (cluster) DO UPDATE
       SET state = excluded.state, cycle_id = excluded.cycle_id, row_version = s.row_version + 1,
           updated_at = clock_timestamp()
     WHERE s.row_version = :seen
""")


def get_state(tx: Connection, cluster: str) -> StateRow:
    """Return the state for the next cycle of the cluster; the empty state with version 0 before the first cycle."""
    row = tx.execute(_STATE, {"cluster": cluster}).one_or_none()
    return StateRow(cluster, "{}", None, 0) if row is None else StateRow(**row._mapping)


def find_request(tx: Connection, cluster: str, request_key: str) -> int | None:
    """Return the id of the cluster's cycle of a request. None if there is none yet."""
    values = {"cluster": cluster, "request_key": request_key}
    cycle_id: int | None = tx.execute(_BY_REQUEST, values).scalar_one_or_none()
    return cycle_id


def record(
    tx: Connection,
    cluster: str,
    *,
    request_key: str,
    decided_at: datetime,
    decided_by: str,
    code_version: str,
    inputs: str,
    outcome: str,
    refusals: Sequence[Mapping[str, Any]] = (),
    proposals: Sequence[NewProposal] = (),
    next_state: str,
    seen_state_version: int,
) -> int:
    """Write a cycle of the cluster, its proposals and the next state. Return the id of the cycle. `refusals` are shown by
    inspect.bundles_why_not; the outcome contains them too, except those of split policies that cannot be read. In the same transaction,
    unapproved proposals of other cycles are refused as in `proposals.supersede`, approved proposals that were not
    applied in time are refused, and an approval is requested for each proposal that waits for an approval.

    `seen_state_version` is the version of the state on which the cycle was decided; 0 means that no state was stored.
    Raises Conflict if another cycle, of any cluster, has the request key; LostRace if the stored state has another
    version; and InvalidInput as `proposals.add`. After an error the caller must roll back the transaction.
    """
    values = {
        "cluster": cluster,
        "request_key": request_key,
        "decided_at": decided_at,
        "decided_by": decided_by,
        "code_version": code_version,
        "inputs": inputs,
        "outcome": outcome,
        "refusals": json.dumps([dict(refusal) for refusal in refusals]),
    }
    cycle_id: int = tx.execute(_RECORD, values).scalar_one()
    _set_state(tx, cluster, next_state, cycle_id, seen_state_version)
    bundle_proposals.add(tx, cycle_id, cluster, proposals, actor=decided_by)
    bundle_proposals.supersede(tx, cluster, cycle_id)
    bundle_proposals.expire_approved(tx, cluster)
    bundle_proposals.ask(tx, cluster)
    return cycle_id


def get_cycle(tx: Connection, cycle_id: int) -> StoredCycle:
    """Return a cycle. Raises NotFound for a cycle that was never recorded or was deleted."""
    row = tx.execute(_GET, {"cycle_id": cycle_id}).one_or_none()
    if row is None:
        raise NotFound(f"there is no cycle {cycle_id}; inspect.bundles_imbalance lists the cycles")
    return StoredCycle(**row._mapping)


def expire(tx: Connection, older_than: datetime) -> int:
    """Delete cycles, with their proposals, that were recorded before `older_than`, except cycles with open proposals, and aggregation
    runs of earlier windows, except the newest. The last 30 days are always kept. Return the number of deleted cycles.
    """
    return int(
        tx.execute(
            text("SELECT cleave.expire_bundle_history(:older_than)"), {"older_than": older_than}
        ).scalar_one()
    )


def forget_inputs(tx: Connection, older_than: datetime) -> int:
    """Delete the inputs, the outcome and the refusals of cycles that were recorded before `older_than`, except the newest cycle of each
    cluster. Return the number of cycles whose inputs this call deleted.

    A cycle without inputs cannot be replayed. The cycle and its proposals are kept.
    """
    return int(
        tx.execute(
            text("SELECT cleave.forget_bundle_inputs(:older_than)"), {"older_than": older_than}
        ).scalar_one()
    )


def _set_state(tx: Connection, cluster: str, state: str, cycle_id: int, row_version: int) -> None:
    """Replace the state of the cluster. Raises LostRace unless the stored state has the version `row_version`; 0 means that there is no
    stored state.
    """
    values = {"cluster": cluster, "state": state, "cycle_id": cycle_id, "seen": row_version}
    if tx.execute(_SET_STATE, values).rowcount != 1:
        raise LostRace(
            f"another cycle of cluster {cluster} has just ended; begin again with its state",
            what="bundle-cycle",
        )
