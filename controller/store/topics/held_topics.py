"""Decides whether a topic may be acted on: not while its logs are ahead of the journal or not yet compared with the journal.

A topic is *verified* under the identity of the database in which its logs were last compared. A restart, a promotion or a restore
changes that identity, and the topic is unverified until the reconciler has compared its logs again. A topic whose logs are ahead of
the journal is *held* until it is recovered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, text

from controller.domain.errors import TopicHeld
from controller.store.shards import Shards, filter_of

MAY_ACT = (
    "t.held_reason IS NULL AND t.verified_under IS NOT DISTINCT FROM (SELECT cleave.database_identity())"
)
"""SQL condition on `cleave.topic t`: the topic is verified and not held."""
WHY_NOT = f"""CASE WHEN {MAY_ACT} THEN NULL
                   ELSE coalesce(t.held_reason, 'its logs are being compared with the journal') END"""
"""SQL expression on `cleave.topic t`: the reason for which nothing acts on the topic; NULL: it may be acted on."""
RETRY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 60.0
"""Maximum time in seconds for which a runner defers an operation, or the evaluation of a topic is paused."""
LONGEST_OPENING_SECONDS = 120.0
"""Maximum time in seconds during which a call that opens a gate may be in progress: twice the largest
`call_timeout_seconds`.
"""

_WHY_NOT = text(
    f"SELECT t.name, {WHY_NOT} AS why_not FROM cleave.topic t WHERE t.topic_id = :topic_id"  # noqa: S608 - constants only
)
# Two range conditions instead of one inequality let the planner search the index. Topics with live operations come first.
_UNVERIFIED = text("""
    SELECT t.topic_id
      FROM cleave.topic t CROSS JOIN (SELECT cleave.database_identity() AS identity) now
     WHERE t.state <> 'deleted'
       AND (t.verified_under < now.identity OR t.verified_under > now.identity OR t.verified_under IS NULL)
       AND (CAST(:shards AS bigint[]) IS NULL
            OR t.topic_id % CAST(:shard_count AS bigint) = ANY (CAST(:shards AS bigint[])))
       AND t.topic_id <> ALL (CAST(:excluded AS bigint[]))
     ORDER BY t.held_reason IS NOT NULL, EXISTS (SELECT FROM cleave.operation o WHERE o.topic_id = t.topic_id AND o.finished_at IS NULL) DESC, t.topic_id
     LIMIT :limit""")
_MAY_NOT_ACT = text(
    f"SELECT t.topic_id FROM cleave.topic t WHERE t.topic_id = ANY (:topic_ids) AND NOT ({MAY_ACT})"  # noqa: S608 - constants only
)
_HELD = text("SELECT held_reason FROM cleave.topic WHERE topic_id = :topic_id")
# Leaders of a lost history may have used generations that the journal does not know, so each subscription continues above them. If the
# clock of the server is behind that of its predecessor, deferred operations would wait too long, so they become due.
_VERIFY = text("""
    WITH verified AS (
        UPDATE cleave.topic t SET verified_under = cleave.database_identity(), row_version = row_version + 1
         WHERE t.topic_id = ANY (:topic_ids) AND t.state <> 'deleted' AND t.held_reason IS NULL
           AND t.verified_under IS DISTINCT FROM cleave.database_identity()
     RETURNING t.topic_id)
    , raised AS (
        UPDATE cleave.subscription u
           SET generation = greatest(u.generation + 1000000, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
          FROM verified v WHERE u.topic_id = v.topic_id)
    , due AS (
        UPDATE cleave.operation o SET not_before = clock_timestamp(), row_version = o.row_version + 1
          FROM verified v
         WHERE o.topic_id = v.topic_id AND o.finished_at IS NULL
           AND o.not_before > clock_timestamp() + make_interval(secs => :longest_delay_seconds))
    SELECT topic_id, cleave.raise_input(ARRAY[topic_id]), pg_notify('cleave_drains', topic_id::text) FROM verified""")
# A claim whose time is in the future is of another server, or of a clock that was set. It would be in force for longer than its holder
# trusts it: at most for its length from now, because the holder counts from before the claim. If the holder renews the claim
# meanwhile, PostgreSQL checks the renewed row, and reads the present time again.
_LIMIT_CLAIMS = text("""
    UPDATE cleave.operation o
       SET claim_expires_at = o.claim_expires_at - (o.claimed_at - clock_timestamp()), claimed_at = clock_timestamp(),
           row_version = o.row_version + 1
     WHERE o.topic_id = ANY (:topic_ids) AND o.finished_at IS NULL AND o.claimed_at > clock_timestamp()""")
# The same holds for pauses of evaluations, and for seeks, which wait until no call that opens a gate can be in progress.
_LIMIT_WAITS = text("""
    WITH paused AS (
        UPDATE cleave.evaluation e SET not_before = clock_timestamp() + make_interval(secs => :longest_delay_seconds)
         WHERE e.topic_id = ANY (:topic_ids) AND e.not_before > clock_timestamp() + make_interval(secs => :longest_delay_seconds))
    UPDATE cleave.gate g SET opening_until = clock_timestamp() + make_interval(secs => :longest_opening_seconds)
     WHERE g.topic_id = ANY (:topic_ids) AND g.opening_until > clock_timestamp() + make_interval(secs => :longest_opening_seconds)""")
_IDENTITY = text("SELECT cleave.database_identity()")
_UNCHANGED = text("""
    SELECT t.topic_id
      FROM cleave.topic t JOIN unnest(CAST(:topic_ids AS bigint[]), CAST(:row_versions AS bigint[])) AS compared (topic_id, row_version)
           USING (topic_id, row_version)
     WHERE cleave.database_identity() = :identity AND t.verified_under IS DISTINCT FROM :identity
     ORDER BY t.topic_id
       FOR NO KEY UPDATE OF t""")
_HOLD = text("""
    UPDATE cleave.topic
       SET held_reason = :reason, held_at = coalesce(held_at, clock_timestamp()), verified_under = NULL, row_version = row_version + 1
     WHERE topic_id = :topic_id AND state <> 'deleted' AND held_reason IS DISTINCT FROM :reason
 RETURNING topic_id, cleave.raise_input(ARRAY[topic_id])""")
_RELEASE = text("""
    UPDATE cleave.topic SET held_reason = NULL, held_at = NULL, row_version = row_version + 1
     WHERE topic_id = :topic_id AND held_reason IS NOT NULL""")
_DOUBT = text("""
    UPDATE cleave.topic SET verified_under = NULL, row_version = row_version + 1
     WHERE topic_id = ANY (:topic_ids) AND state <> 'deleted' AND verified_under IS NOT NULL""")


def demand_may_act(topic: str, why_not: str | None) -> None:
    """Raise TopicHeld, with the name `topic`, if `why_not` (the value of `WHY_NOT`) is a reason. None: does nothing."""
    if why_not is not None:
        raise TopicHeld(
            f"nothing acts on topic {topic} at present: {why_not}; retry, or see `cleave topics recover {topic} --dry-run`",
            RETRY_SECONDS,
        )


def demand_topic_may_act(tx: Connection, topic_id: int) -> None:
    """Raise TopicHeld if the topic is held or has to be verified first. Does nothing for an unknown topic."""
    for row in tx.execute(_WHY_NOT, {"topic_id": topic_id}):
        demand_may_act(row.name, row.why_not)


def unverified_topics(
    tx: Connection, *, limit: int, shards: Shards | None = None, excluded: Collection[int] = ()
) -> list[int]:
    """Return the ids of up to `limit` topics of the shards (None: all), without the `excluded` ids, whose logs were not compared with the
    journal under this database: topics with live operations first, held topics last. Deleted topics are absent.
    """
    parameters = {"limit": limit, "excluded": sorted(excluded), **filter_of(shards)}
    return list(tx.execute(_UNVERIFIED, parameters).scalars())


def topics_that_may_not_act(tx: Connection, topic_ids: Collection[int]) -> list[int]:
    """Return those of these topics that may not be acted on, because they are held or unverified."""
    return list(tx.execute(_MAY_NOT_ACT, {"topic_ids": sorted(topic_ids)}).scalars())


def held_reason(tx: Connection, topic_id: int) -> str | None:
    """Return the evidence for which the topic is held; None if the topic is not held. The topic must exist."""
    reason: str | None = tx.execute(_HELD, {"topic_id": topic_id}).scalar_one()
    return reason


def database_identity(tx: Connection) -> str:
    """Return the identity of the database, which a restart, a promotion or a restore changes."""
    return str(tx.execute(_IDENTITY).scalar_one())


def unchanged_unverified(tx: Connection, row_versions: Mapping[int, int], identity: str) -> list[int]:
    """Return the unverified ones of these topics (their row versions by id) whose rows have not changed since, and lock them. Empty if
    `identity` is no longer the identity of the database, because the topics were compared with rows that may be lost.
    """
    parameters = {
        "topic_ids": [*row_versions],
        "row_versions": [*row_versions.values()],
        "identity": identity,
    }
    return list(tx.execute(_UNCHANGED, parameters).scalars())


def verify(tx: Connection, topic_ids: Collection[int]) -> list[int]:
    """Record that the logs of these topics agree with the journal. Return the ids of the topics that were unverified
    until then; held and deleted topics are skipped.

    For each returned topic, the generations of its subscriptions are raised above those of a lost history, operations
    deferred by more than `LONGEST_DELAY_SECONDS` become due, claims from the future end after their length from now,
    its evaluation is due, and its leader is notified. A pause of its evaluation lasts at most `LONGEST_DELAY_SECONDS`
    from now, and a seek waits at most `LONGEST_OPENING_SECONDS` for a call that opens a gate.
    """
    delay = {"longest_delay_seconds": LONGEST_DELAY_SECONDS}
    verified_ids = list(tx.execute(_VERIFY, {"topic_ids": sorted(topic_ids), **delay}).scalars())
    verified = {"topic_ids": verified_ids}
    tx.execute(_LIMIT_CLAIMS, verified)
    tx.execute(_LIMIT_WAITS, verified | delay | {"longest_opening_seconds": LONGEST_OPENING_SECONDS})
    return verified_ids


def hold(tx: Connection, topic_id: int, reason: str) -> bool:
    """Hold the topic for this reason, which also makes it unverified and its evaluation due. Claims from the future,
    whose runners may be the reason, end after their length from now.

    Return True if the topic was not held for the same reason before. False, without a change, if it was, or if the
    topic is deleted or unknown.
    """
    tx.execute(_LIMIT_CLAIMS, {"topic_ids": [topic_id]})
    return tx.execute(_HOLD, {"topic_id": topic_id, "reason": reason}).rowcount == 1


def release(tx: Connection, topic_id: int) -> None:
    """Stop holding the topic; does nothing if the topic is not held. The topic stays unverified until its logs are compared again."""
    tx.execute(_RELEASE, {"topic_id": topic_id})


def doubt(tx: Connection, topic_ids: Collection[int]) -> None:
    """Mark these topics as unverified, so that their logs are compared with the journal before anything acts on them. Deleted topics are
    skipped.
    """
    if topic_ids:
        tx.execute(_DOUBT, {"topic_ids": sorted(topic_ids)})
