"""The hash in SQL is the clients' own, for every key."""

from __future__ import annotations

import random

from controller.domain.key_hash import key_hash
from tests.support.drawn import cases
from tests.support.inspection import ask
from tests.support.store_driver import StoreDriver

_HASHES = "SELECT key, inspect.hash_of(key) AS hash FROM unnest(CAST(:keys AS text[])) AS key"
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz0123456789-_./",
    "äöüßéñøåçłžğ",
    "данныеключ",
    "数据键値순서",
    "😀🚀🧵🏳️‍🌈",
    "".join(map(chr, (*range(1, 128), 0x7FF, 0x800, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF))),
)


def drawn_keys(count: int) -> list[str]:
    """Of every length from nothing to a few words, in many scripts and mixed; the same ones each time."""
    draw = random.Random(20_261_122)
    keys = []
    for number in range(count):
        letters = ALPHABETS[number % len(ALPHABETS)] + (draw.choice(ALPHABETS) if draw.random() < 0.3 else "")
        keys.append("".join(draw.choices(letters, k=draw.choice((*range(12), 40, 200)))))
    return keys


def test_it_equals_the_clients_hash_for_many_drawn_keys(driver: StoreDriver) -> None:
    keys = drawn_keys(cases(20_000, 200_000))

    found = {row["key"]: row["hash"] for row in ask(driver, _HASHES, keys=keys)}

    assert len(found) > len(keys) / 2
    assert any(not key.isascii() for key in found)
    assert found == {key: key_hash(key).segment_hash for key in keys}


def test_pulsars_known_answers_and_the_ends_of_the_ring(driver: StoreDriver) -> None:
    known = {"key1": 0x9B97, "key2": 0x7371, "": 0}

    assert {row["key"]: row["hash"] for row in ask(driver, _HASHES, keys=list(known))} == known
    [row] = ask(driver, "SELECT inspect.hash_of(NULL) AS hash")
    assert row["hash"] is None
