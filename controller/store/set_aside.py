"""Subjects that a batch left out, and why: a batch that serves many topics never fails for one of them.

A row of `cleave.set_aside` says it to people (`inspect.set_aside`), to `cleave doctor` and to the metrics. A loader and the
controller write here through one function of the owner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, text

from controller import telemetry

log = telemetry.get_logger(__name__)

NOTED_AT_MOST = 100
"""Subjects written down of one batch. The log has the number of all."""

_NOTE = text("SELECT cleave.note_set_aside(:batch, :subjects, CAST(:topic_ids AS bigint[]), :reasons)")


class Batch(StrEnum):
    """A batch that serves many topics."""

    LOAD = "load"
    KEY_COUNTS = "key counts"
    BUNDLE_LOAD = "bundle load"
    EVALUATION = "evaluation"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class SetAside:
    """A subject that a batch left out. `topic_id`: the topic concerned; None where it is no single topic."""

    subject: str
    reason: str
    topic_id: int | None = None


def note(tx: Connection, batch: Batch, subjects: Sequence[SetAside]) -> None:
    """Record what the batch left out, in the log and the database. Does nothing where that is nothing."""
    if not subjects:
        return
    log.warning(
        "set aside", batch=batch, subjects=len(subjects), first=subjects[0].subject, reason=subjects[0].reason
    )
    noted = subjects[:NOTED_AT_MOST]
    tx.execute(
        _NOTE,
        {
            "batch": batch,
            "subjects": [_storable(one.subject) for one in noted],
            "topic_ids": [one.topic_id for one in noted],
            "reasons": [_storable(one.reason) for one in noted],
        },
    )


def _storable(words: str) -> str:
    """Return the words on one line, without characters that PostgreSQL cannot store."""
    return " ".join(words.replace("\0", "\N{REPLACEMENT CHARACTER}").split())
