"""Records the subjects that a batch skipped, with the reasons. A batch over many topics never fails because of one of them.

The rows of `cleave.set_aside` are shown by `inspect.set_aside`, `cleave doctor` and the metrics. The loaders and the controller
write them through one function of the owner.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, text

from controller import telemetry

log = telemetry.get_logger(__name__)

NOTED_AT_MOST = 100
"""Maximum number of subjects that are recorded for one batch. The log event has the total number."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""NUL, and halves of surrogate pairs, which the name of a file may contain."""
_NOTE = text("SELECT cleave.note_set_aside(:batch, :subjects, CAST(:topic_ids AS bigint[]), :reasons)")


class Batch(StrEnum):
    """A batch over many topics."""

    LOAD = "load"
    KEY_COUNTS = "key counts"
    BUNDLE_LOAD = "bundle load"
    EVALUATION = "evaluation"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class SetAside:
    """A subject that a batch skipped. `topic_id` is the topic of the subject; None if the subject concerns no topic, or several."""

    subject: str
    reason: str
    topic_id: int | None = None


def note(tx: Connection, batch: Batch, subjects: Sequence[SetAside]) -> None:
    """Log the number of skipped subjects and the first of them, and record the first `NOTED_AT_MOST` in the database.
    A subject that the batch skipped before keeps its row, whose count is raised and whose reason is replaced. Also
    deletes rows of all batches that were last written more than a day ago.

    Does nothing without a skipped subject.
    """
    if not subjects:
        return
    log.warning(
        "subjects skipped",
        batch=batch,
        subjects=len(subjects),
        first=subjects[0].subject,
        reason=subjects[0].reason,
    )
    recorded = subjects[:NOTED_AT_MOST]
    tx.execute(
        _NOTE,
        {
            "batch": batch,
            "subjects": [_storable(subject.subject) for subject in recorded],
            "topic_ids": [subject.topic_id for subject in recorded],
            "reasons": [_storable(subject.reason) for subject in recorded],
        },
    )


def _storable(words: str) -> str:
    """Return the text on one line, with a replacement for each character that PostgreSQL cannot store."""
    return " ".join(_UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", words).split())
