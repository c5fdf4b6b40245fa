"""The operation that created a backing log, as the log's own properties record it.

A data plane writes the origin in the call that creates the log and never changes the origin later. The origin shows
whether one of this journal's operations created a log, and to which layout a log belongs if the journal is older than
the log. Pure; performs no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_OPERATION: Final = "cleave.token"
_EPOCH: Final = "cleave.epoch"
_PARENTS: Final = "cleave.parents"
_SPLITS: Final = "cleave.bucket-splits"
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)
"""A number that Java and PostgreSQL hold in 64 bits."""


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """The creation record of a log. Tokens are compared for equality only."""

    token: str
    """Token of the operation that created the log."""
    epoch: int
    """Layout epoch that the operation was about to commit."""
    parent_ids: tuple[int, ...]
    bucket_splits: tuple[int, ...]

    def to_properties(self) -> dict[str, str]:
        """Return the properties that store the origin with the log. Their keys begin with `cleave.`."""
        return {
            _OPERATION: self.token,
            _EPOCH: str(self.epoch),
            _PARENTS: ",".join(map(str, self.parent_ids)),
            _SPLITS: ",".join(map(str, self.bucket_splits)),
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> LogOrigin | None:
        """Return the origin that the properties of a log hold. None if the properties hold no complete, readable origin.

        Other programs may set any property, so the method raises nothing and ignores keys that it does not know.
        """
        token, epoch = properties.get(_OPERATION), _wholes(properties.get(_EPOCH))
        parents, splits = _wholes(properties.get(_PARENTS)), _wholes(properties.get(_SPLITS))
        if not isinstance(token, str) or not token or epoch is None or len(epoch) != 1:
            return None
        if parents is None or splits is None:
            return None
        return cls(token, epoch[0], parents, splits)


def _wholes(text: object) -> tuple[int, ...] | None:
    """Return the comma-separated whole numbers in `text`, of up to 18 digits each; empty for an empty text. None if
    `text` is not a str or contains anything else.
    """
    if not isinstance(text, str):
        return None
    parts = text.split(",") if text else []
    if not all(_WHOLE.fullmatch(part) for part in parts):
        return None
    return tuple(int(part) for part in parts)


@dataclass(frozen=True, slots=True)
class Ownership:
    """The journal's record of a log's name. `token` None: the operation is from before tokens were recorded."""

    is_reserved: bool = False
    """True if an operation of this journal reserved the name, or a recovery recorded the log as one of a segment."""
    token: str | None = None
    is_adopted: bool = False
    """True if a person had Cleave adopt the log as it was."""
    was_active: bool = False
    """True if the log belonged to a segment of a layout that this journal committed, pruned segments included."""

    def created(self, origin: LogOrigin | None) -> bool:
        """Return True if an operation of this journal created the log that has this origin or adopted the log, or if a
        recovery recorded the log with this origin.

        `origin` is None for a log without a creation record, which only an operation without a token can have
        created.
        """
        stored = None if origin is None else origin.token
        return self.is_adopted or (self.is_reserved and stored == self.token)


NOT_RESERVED = Ownership()
"""Ownership of a log that this journal does not know."""
