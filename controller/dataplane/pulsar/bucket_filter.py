"""Decides which messages of an entry belong to a bucket: by the producer's marks, or by the keys if there are
no marks.

A broker delivers whole entries, by one slot. Cleave's producers put messages of one bucket into an entry and
mark the entry. Other producers do not know buckets: the slot of their batch is determined by the key of its
first message, whatever its other keys are. Each message of such a batch is therefore checked. `bucket_reader`
checks messages when they arrive, and holds back those of other buckets.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from controller.dataplane.pulsar.bucket_slots import HASHES, belongs
from controller.dataplane.pulsar.message_runs import Entry, Run
from controller.domain.hash_range import HashRange
from controller.domain.key_hash import key_hash


class BucketFilter:
    """The filter of the reader of `bucket`. A *mark* is the range of bucket hashes that a producer set on a
    message (property `HASHES`). The filter remembers the mark at the beginning of the latest entry, for later
    messages of the entry.
    """

    def __init__(self, bucket: HashRange) -> None:
        self._bucket = bucket
        self._entry: Entry | None = None
        self._marked: str | None = None
        self._are_keys_bytes: bool | None = None

    def sort(self, run: Run) -> tuple[list[Run], list[Run]]:
        """Divide the run, and return two lists: the parts that belong to the bucket, and the other parts, each in the
        order of the messages.

        The run stays whole if all its messages belong to the bucket, or if one mark holds for all messages: the entry
        has a mark, and the last message has none or the same. Any other run is divided into single messages. The
        filter remembers the mark of an entry for the entry's later runs, so the method must be called for all runs of
        the reader in the order of their arrival.
        """
        self._read_marks(run)
        if self._marked is not None and _mark(run.messages[-1]) in (None, self._marked):
            return ([run], []) if belongs(self._bucket, self._marked) else ([], [run])
        are_own = [self._is_ours(message) for message in run.messages]
        if all(are_own):
            return [run], []
        own_runs: list[Run] = []
        foreign_runs: list[Run] = []
        for message_run, is_own in zip(run.singly(), are_own, strict=True):
            (own_runs if is_own else foreign_runs).append(message_run)
        return own_runs, foreign_runs

    def _read_marks(self, run: Run) -> None:
        """Set the remembered mark to that of the run's entry. The first message of an entry carries the mark for all
        messages. If a later message has a mark, its producer marks each message.

        For the first run of an entry, the mark is that of the run's first message, None if this message has none. For
        a later run of the same entry, the mark changes only if the run's first message has a mark. For the first run
        of an entry, also remember whether the entry's keys are bytes in base64; None (unknown) if the run does not
        begin with the entry's first message.
        """
        first = run.messages[0]
        marked = _mark(first)
        if run.entry != self._entry:
            self._entry, self._marked = run.entry, marked
            self._are_keys_bytes = self._are_bytes(first) if run.first_index == 0 else None
        elif marked is not None:
            self._marked = marked

    def _is_ours(self, message: Any) -> bool:
        """Return True if the message belongs to the bucket. The message must be of the entry of the last
        `_read_marks`.

        The message's own mark decides; without a mark, the mark of its entry; without either, its key. The key is
        hashed as text, or as the bytes that the text encodes in base64. If it is unknown which of the two applies,
        one match suffices. True for a message without a mark and without a key, and for a mark that cannot be read.
        """
        marked = _mark(message)
        if marked is not None:
            return belongs(self._bucket, marked)
        if self._marked is not None:
            return belongs(self._bucket, self._marked)
        key = _key(message)
        if not key:
            return True  # a message without a key has no order to keep
        if self._are_keys_bytes is None:
            return self._has(key) or self._has_bytes(key)
        return self._has_bytes(key) if self._are_keys_bytes else self._has(key)

    def _are_bytes(self, first: Any) -> bool:
        """Return True if the keys are bytes in base64, as producers in Java can send them.

        The library does not report this. But the broker chose the slot by the first message's key, so the
        interpretation by which the key belongs to this bucket is right.
        """
        key = _key(first)
        return bool(key) and not self._has(key) and self._has_bytes(key)

    def _has(self, key: str) -> bool:
        """Return True if the bucket contains the hash of the key's text."""
        return self._bucket.contains(key_hash(key).bucket_hash)

    def _has_bytes(self, key: str) -> bool:
        """Return True if the key is base64, and the bucket contains the hash of the decoded bytes."""
        try:
            return self._bucket.contains(key_hash(base64.b64decode(key, validate=True)).bucket_hash)
        except binascii.Error:
            return False


def _mark(message: Any) -> str | None:
    """Return the bucket hashes with which the message's entry is marked. None without a mark."""
    marked: str | None = message.properties().get(HASHES)
    return marked


def _key(message: Any) -> str:
    """Return the key by which a broker chooses the slot of a message that is an entry of its own. Empty
    without a key.
    """
    key: str = message.ordering_key() or message.partition_key()
    return key
