"""Claims of operations: the runner, the term, and the expiry time by the clock of the database.

Each write of a runner about an operation requires its claim (see `steps`), so that a stale runner cannot change anything. This
module claims operations, renews and releases claims, and records a failed attempt with the time of the next attempt. The
runner chooses the delay between attempts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.next_step import Observed
from controller.domain.operation import Operation, OperationKind
from controller.domain.reshape import ReshapeKind
from controller.store.journal.claim_check import GIVEN, HELD, fenced_out, held_parameters
from controller.store.journal.operations import READ_COLUMNS, operation_of
from controller.store.journal.steps import OBSERVED_COLUMNS, observed_of
from controller.store.postgres.prepared_statements import Prepared
from controller.store.shards import Shards

TURN_SECONDS = 0.5
"""Seconds after which a reshape that waits for another reshape is checked again, because the other may end in another process."""

# Operations of kinds that this version does not know are left to a newer version. The sub-select reads the clock once, so that
# the index can be searched. Operations of a held topic wait for its recovery, which ends or frees them.
_DUE = """o.finished_at IS NULL AND o.not_before <= (SELECT clock_timestamp()) AND o.kind = ANY (:kinds)
           AND o.operation_id <> ALL (:in_hand)
            AND (SELECT h.held_reason IS NULL FROM cleave.topic h WHERE h.topic_id = o.topic_id)"""
# A broker that keeps the layout assigns ids twice if two calls overlap, so reshapes of such a topic run one after the other.
# Intents of a topic are written under its lock, so this condition sees every older intent.
_HAS_TURN = """(o.parameters ->> 'on_broker' IS DISTINCT FROM 'true' OR o.kind <> ALL (:reshapes) OR NOT EXISTS (
                SELECT FROM cleave.operation e
                 WHERE e.topic_id = o.topic_id AND e.operation_id < o.operation_id AND e.finished_at IS NULL
                   AND e.kind = ANY (:reshapes)))"""
_RESUMED = ":resumes AND o.claimed_by = :runner"
_CLAIMABLE = f"""(o.claimed_by IS NULL OR {_RESUMED}
                OR o.claim_expires_at <= (SELECT clock_timestamp()) - make_interval(secs => :call_timeout_seconds))"""
_FENCED = "o.state IN ('fencing', 'fenced')"
_SHARING = """o.kind = ANY (:reshapes)
            AND (SELECT t.data_plane = ANY (:sharing_planes) FROM cleave.topic t WHERE t.topic_id = o.topic_id)"""
_FRESH = f"o.state = 'intended' AND o.attempts = 0 AND (o.claimed_by IS NULL OR {_RESUMED}) AND {_SHARING}"
# The sub-selects are materialized because they lock rows and must not run twice. Rows that another runner has locked are skipped.
_CLAIM = f"""
    WITH fenced AS MATERIALIZED (
        SELECT o.operation_id, {_SHARING} AS shares_calls FROM cleave.operation o
         WHERE {_DUE} AND {_FENCED} AND {{which}} AND {_CLAIMABLE}
         ORDER BY o.not_before, o.operation_id LIMIT least(:limit, :fenced_limit) FOR UPDATE OF o SKIP LOCKED)
    , fresh AS MATERIALIZED (
        SELECT o.operation_id FROM cleave.operation o
         WHERE {_DUE} AND {_FRESH} AND {{which}}
         ORDER BY o.not_before, o.operation_id
         LIMIT (SELECT greatest(:limit - greatest(count(*), 1), least(:limit, 1) - count(*)) FROM fenced) FOR UPDATE OF o SKIP LOCKED)
    , other AS MATERIALIZED (
        SELECT o.operation_id FROM cleave.operation o
         WHERE {_DUE} AND NOT ({_FRESH}) AND NOT {_FENCED} AND {{which}} AND {_CLAIMABLE}
           AND {_HAS_TURN}
         ORDER BY o.not_before, o.operation_id
         LIMIT CASE WHEN EXISTS (SELECT FROM fenced) THEN 0
                    ELSE (SELECT CASE WHEN count(*) < :limit THEN 1 ELSE 0 END FROM fresh) END
           FOR UPDATE OF o SKIP LOCKED)
    , taken AS (
        UPDATE cleave.operation o
           SET claimed_by = :runner, claim_term = o.claim_term + 1, row_version = o.row_version + 1,
               claimed_at = clock_timestamp(), claim_expires_at = clock_timestamp() + make_interval(secs => :lease_seconds)
          FROM (SELECT operation_id, shares_calls FROM fenced
                UNION ALL SELECT operation_id, true FROM fresh
                UNION ALL SELECT operation_id, false FROM other) due
         WHERE o.operation_id = due.operation_id
     RETURNING o.*, due.shares_calls)
    SELECT {READ_COLUMNS}, o.shares_calls, {OBSERVED_COLUMNS}
      FROM taken o JOIN cleave.topic t USING (topic_id)
     ORDER BY o.operation_id
"""
_CLAIM_TYPES = {
    "runner": "text",
    "lease_seconds": "float8",
    "call_timeout_seconds": "float8",
    "limit": "bigint",
    "fenced_limit": "bigint",
    "kinds": "text[]",
    "in_hand": "bigint[]",
    "resumes": "boolean",
    "reshapes": "text[]",
    "sharing_planes": "text[]",
}
_IN_SHARDS = "o.topic_id % :shard_count = ANY (:shards)"
CLAIM = Prepared("claim_due", _CLAIM.replace("{which}", "TRUE"), _CLAIM_TYPES)
CLAIM_IN_SHARDS = Prepared(
    "claim_due_in_shards",
    _CLAIM.replace("{which}", _IN_SHARDS),
    _CLAIM_TYPES | {"shard_count": "bigint", "shards": "bigint[]"},
)
CLAIM_ONE = Prepared(
    "claim_one",
    _CLAIM.replace("{which}", "o.operation_id = :operation_id"),
    _CLAIM_TYPES | {"operation_id": "bigint"},
)

_NEXT_DUE = f"""
    SELECT min(greatest(o.not_before, least(o.intended_at, clock_timestamp()),
                        o.claim_expires_at + make_interval(secs => :call_timeout_seconds),
                        CASE WHEN NOT {_HAS_TURN} THEN clock_timestamp() + make_interval(secs => {TURN_SECONDS}) END))
      FROM cleave.operation o WHERE o.finished_at IS NULL AND o.kind = ANY (:kinds) AND {{which}}
       AND (SELECT h.held_reason IS NULL FROM cleave.topic h WHERE h.topic_id = o.topic_id)
"""
_OF_RUNNER = f"""FROM given g
     WHERE o.operation_id = ANY (:operation_ids) AND o.operation_id = g.operation_id AND {HELD} RETURNING o.operation_id"""
_RENEW = f"""{GIVEN}
    UPDATE cleave.operation o
       SET claim_expires_at = greatest(o.claim_expires_at - greatest(o.claimed_at - clock_timestamp(), interval '0'),
                                       clock_timestamp() + make_interval(secs => :lease_seconds)),
           claimed_at = clock_timestamp(), row_version = o.row_version + 1
    {_OF_RUNNER}
"""
_RELEASE = f"""{GIVEN}
    UPDATE cleave.operation o SET claimed_by = NULL, claim_expires_at = NULL, row_version = o.row_version + 1
    {_OF_RUNNER}
"""
_FAIL = f"""{GIVEN}
    UPDATE cleave.operation o
       SET claimed_by = NULL, claim_expires_at = NULL, row_version = o.row_version + 1, attempts = o.attempts + :attempts,
           last_error = :error_text, not_before = clock_timestamp() + make_interval(secs => :delay_seconds)
    {_OF_RUNNER}
"""
_RESHAPES = [kind.value for kind in ReshapeKind]
_KINDS = [kind.value for kind in OperationKind]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed operation, and the state of its topic at the time of the claim.

    `shares_calls` is True if the operation is a reshape that may share data-plane calls with the other marked reshapes.
    """

    operation: Operation
    observed: Observed
    shares_calls: bool


def claim(
    tx: Connection,
    *,
    runner: str,
    lease_seconds: float,
    call_timeout_seconds: float,
    limit: int = 1,
    fenced_limit: int = 1,
    sharing_planes: Collection[str] = (),
    operation_id: int | None = None,
    shards: Shards | None = None,
    in_hand: Collection[int] | None = None,
) -> list[Claim]:
    """Claim up to `limit` operations (0 or more) for `lease_seconds`, and increment their claim terms. Return the
    claims in the order of the operations' ids; the list is empty if no operation can be claimed.

    An operation can be claimed if it is live, its next attempt is due, and no claim on it is in force. Operations of
    held topics, operations of kinds that this version does not know, and rows that another transaction has locked are
    skipped. With `operation_id`, only this operation is considered, whatever its shard; all other conditions apply to
    it too.

    A claim is in force until `call_timeout_seconds` (the time-out of the longest data-plane call) after its expiry,
    when no call under the claim can still be in progress. `in_hand` lists the operations that threads of this runner
    are performing. These operations are skipped, and the runner's claims on all other operations are not in force,
    because the runner knows that none of its calls for them is in progress. With None, no operation is skipped, and
    the runner's own claims are in force like those of other runners.

    Operations in the states fencing and fenced come first, at most `fenced_limit` of them, because no log accepts
    writes for their range. Fresh reshapes on `sharing_planes`, whose operations share calls, come second; a fresh
    reshape is in the state intended, has no failed attempt, and is not claimed by another runner. Operations of any
    other kind or state come last: at most one, and none if a fencing or fenced operation was claimed. Fresh reshapes
    leave room for this operation if `limit` is at least 2; with `limit` 1, a fresh reshape is claimed instead. In
    each group, the operation that has been due for the longest time is claimed first.

    If a broker keeps the layout of the topic, a reshape is claimed only after all older reshapes of the topic have
    finished. An older reshape that is claimed or deferred has not finished, because its last call may be in progress.
    """
    parameters: dict[str, object] = {
        "runner": runner,
        "lease_seconds": lease_seconds,
        "call_timeout_seconds": call_timeout_seconds,
        "limit": limit,
        "fenced_limit": fenced_limit,
        "kinds": _KINDS,
        "in_hand": list(in_hand or ()),
        "resumes": in_hand is not None,
        "reshapes": _RESHAPES,
        "sharing_planes": list(sharing_planes),
        "operation_id": operation_id,
        **({} if shards is None else shards.parameters),
    }
    statement = CLAIM if shards is None else CLAIM_IN_SHARDS
    rows = (statement if operation_id is None else CLAIM_ONE).execute(tx, parameters)
    return [Claim(operation_of(row), observed_of(row), row.shares_calls) for row in rows]


def next_due(tx: Connection, shards: Shards | None = None, *, call_timeout_seconds: float) -> datetime | None:
    """Return the earliest time, which may be in the past, at which a live operation of the shards (None: of all
    topics) can be claimed; None if there is no such operation.

    Operations of held topics, and of kinds that this version does not know, are ignored. The claim of a runner ends
    `call_timeout_seconds` after its expiry. A reshape on a mirrored topic that waits for an older reshape counts as due
    `TURN_SECONDS` from now, or later.
    """
    parameters: dict[str, object] = {
        "kinds": _KINDS,
        "reshapes": _RESHAPES,
        "call_timeout_seconds": call_timeout_seconds,
    }
    statement = _NEXT_DUE.format(which="TRUE" if shards is None else _IN_SHARDS)
    due: datetime | None = tx.execute(
        text(statement), parameters | ({} if shards is None else shards.parameters)
    ).scalar_one()
    return due


def renew(tx: Connection, operations: Sequence[Operation], runner: str, lease_seconds: float) -> set[int]:
    """Extend the claims to `lease_seconds` from now, and never shorten a claim, except by as much as the clock of the
    database went back since the claim was made or renewed. Return the ids of the operations whose claims `runner` still
    holds under the terms in `operations`; lost claims are not extended, and raise no error.
    """
    return _write(tx, operations, runner, _RENEW, lease_seconds=lease_seconds)


def release(tx: Connection, operations: Sequence[Operation], runner: str) -> None:
    """Release the claims at once. No call of the runner may be in progress. Lost claims are skipped."""
    _write(tx, operations, runner, _RELEASE)


def record_failure(
    tx: Connection,
    operation: Operation,
    runner: str,
    error_text: str,
    delay_seconds: float,
    *,
    is_wait: bool = False,
) -> None:
    """Store the error, count the attempt, release the claim, and defer the next attempt by the delay. With `is_wait`, the operation
    only waits for others, and the attempt does not count.

    After a call that timed out, the delay must be at least the time-out of the call. Raises FencedOut if the claim is lost.
    """
    counted = {"attempts": 0 if is_wait else 1}
    if not _write(
        tx, [operation], runner, _FAIL, error_text=error_text, delay_seconds=delay_seconds, **counted
    ):
        raise fenced_out(operation, runner)


def _write(
    tx: Connection, operations: Sequence[Operation], runner: str, statement: str, **parameters: object
) -> set[int]:
    """Execute the statement for the operations whose claims the runner still holds, and return the ids of these
    operations.
    """
    parameters |= held_parameters(operations, runner)
    return {row.operation_id for row in tx.execute(text(statement), parameters)}
