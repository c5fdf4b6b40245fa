"""Which messages of an entry are a bucket's: what its producer says of them, and what their keys say where it says nothing.

A broker gives out whole entries, by one slot. Cleave's producers put messages of one bucket into an entry and mark it. Others know
nothing of buckets: a batch of theirs goes where the key of its first message says, whatever the keys in it. So each of its messages
is looked at. `bucket_reader` asks, for what has just arrived, and holds back what is another bucket's.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from controller.dataplane.pulsar.buckets import HASHES, belongs
from controller.dataplane.pulsar.runs import Entry, Run
from controller.domain.hash_range import HashRange
from controller.domain.key_hash import key_hash


class Belonging:
    """For one reader: it remembers what the beginning of the entry that came last said, for those of it that come later."""

    def __init__(self, bucket: HashRange) -> None:
        self._bucket = bucket
        self._entry: Entry | None = None
        self._marked: str | None = None
        self._are_keys_bytes: bool | None = None

    def sort(self, run: Run) -> tuple[list[Run], list[Run]]:
        """Those of the bucket, and the others, in order; one that is of one kind is not cut."""
        self._begin(run)
        if self._marked is not None and _mark(run.messages[-1]) in (None, self._marked):
            return ([run], []) if belongs(self._bucket, self._marked) else ([], [run])
        fitting = [self._is_ours(message) for message in run.messages]
        if all(fitting):
            return [run], []
        ours: list[Run] = []
        others: list[Run] = []
        for one, fits in zip(run.singly(), fitting, strict=True):
            (ours if fits else others).append(one)
        return ours, others

    def _begin(self, run: Run) -> None:
        """The first message of an entry is marked for all; where the first that comes has a mark, it is of somebody who marks each."""
        first = run.messages[0]
        marked = _mark(first)
        if run.entry != self._entry:
            self._entry, self._marked = run.entry, marked
            self._are_keys_bytes = self._are_bytes(first) if run.first_index == 0 else None
        elif marked is not None:
            self._marked = marked

    def _is_ours(self, message: Any) -> bool:
        """Cleave's messages all have a mark, or stand behind one that has."""
        marked = _mark(message)
        if marked is not None:
            return belongs(self._bucket, marked)
        if self._marked is not None:
            return belongs(self._bucket, self._marked)
        key = _key(message)
        if not key:
            return True  # there is no order to keep
        if self._are_keys_bytes is None:
            return self._has(key) or self._has_bytes(key)
        return self._has_bytes(key) if self._are_keys_bytes else self._has(key)

    def _are_bytes(self, first: Any) -> bool:
        """Whether the keys are bytes written in base64, as Java's producers can send them. The library does not tell, but the broker
        has chosen the slot by the first message's key, so that reading is right by which it is this bucket's.
        """
        key = _key(first)
        return bool(key) and not self._has(key) and self._has_bytes(key)

    def _has(self, key: str) -> bool:
        return self._bucket.contains(key_hash(key).bucket_hash)

    def _has_bytes(self, key: str) -> bool:
        try:
            return self._bucket.contains(key_hash(base64.b64decode(key, validate=True)).bucket_hash)
        except binascii.Error:
            return False


def _mark(message: Any) -> str | None:
    """Which bucket hashes it says that its entry holds; None where it says nothing."""
    marked: str | None = message.properties().get(HASHES)
    return marked


def _key(message: Any) -> str:
    """What a broker that got it alone would choose the slot by; empty where there is none."""
    key: str = message.ordering_key() or message.partition_key()
    return key
