"""Small files that a compacted file replaces, which a listing of a landing area hides.

The footer of a compacted file names them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from controller.landing.file_names import LandedFile
from controller.landing.location import Location

REPLACES = b"cleave.replaces"
"""Key in a compacted file's footer: the names of the files that it replaces and the time of its writing, as JSON."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Names of the small files that a compacted file replaces, and the time of the compacted file's writing."""

    names: frozenset[str]
    written_at_ms: int


def footer_note(names: Sequence[str], written_at_ms: int) -> dict[bytes, bytes]:
    """Return the metadata of the footer of a file that replaces the files `names`. `replacements` reads it."""
    return {REPLACES: json.dumps({"names": list(names), "written_at_ms": written_at_ms}).encode()}


def hidden_names(location: Location, landed: Sequence[LandedFile]) -> set[str]:
    """Return the names of the files of the listing `landed` that are not read: the small files that a compacted file
    replaces, and a compacted file all of whose files another compacted file replaces together with further ones. Two
    compactors at once write two such files if one of them listed a file more.
    """
    replacement_of = replacements(location, landed)
    hidden = {name for replacement in replacement_of.values() for name in replacement.names}
    for path, replacement in replacement_of.items():
        if replacement.names and any(replacement.names < other.names for other in replacement_of.values()):
            hidden.add(path.rpartition("/")[2])
    return hidden


def replacements(location: Location, landed: Sequence[LandedFile]) -> dict[str, Replacement]:
    """Return the files that each compacted file of a listing replaces, by the compacted file's path. A compacted file
    that cannot be read replaces nothing.

    A footer is read only if another file's ticks overlap. Otherwise the small files are deleted already, and the
    compacted file is left out.
    """
    return {
        file.path: _replacement(location, file.path)
        for file in landed
        if file.is_compacted
        and any(f is not file and f.covers(file.first_tick_ms, file.last_tick_ms) for f in landed)
    }


def _replacement(location: Location, path: str) -> Replacement:
    """Return the files that the compacted file's footer names. An empty `Replacement` if the file or its note cannot be
    read: the small files then still count.

    A file that cannot be read will be quarantined. A file of which only the note is damaged stays, because its samples
    may be the only copy; the next compaction of the small files replaces it.
    """
    try:
        with location.open(path) as stream:
            metadata = pq.read_metadata(stream).metadata or {}
        note = json.loads(metadata.get(REPLACES, b'{"names": [], "written_at_ms": 0}'))
        return Replacement(frozenset(note["names"]), int(note["written_at_ms"]))
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return Replacement(frozenset(), 0)
