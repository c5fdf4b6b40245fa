"""Notifications as any login of the database may send them: payloads that no part of Cleave would send."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.store.postgres.engine import Store

LONGEST_BYTES = 7_999
"""PostgreSQL sends no longer payload."""
CHANNELS = (
    "cleave_layout",
    "cleave_leaders",
    "cleave_topics",
    "cleave_operations",
    "cleave_consumers",
    "cleave_load",
    "cleave_policy",
    "cleave_drains",
    "embedded_arrivals",
)
KNOWN = (
    "²",
    "١٢",
    "１７",
    "17:²",
    "²:4",
    "1:2:3",
    ":",
    "17:",
    "-1",
    "+1",
    "1_7",
    " 17",
    "1e5",
    str(2**63),
    f"17:{2**63}",
    "9" * LONGEST_BYTES,
    "²" * (LONGEST_BYTES // 2),
    "acme/shop",
    "\x1b[2J",
)
"""Each has ended something, or looks like what could. None is an id."""
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)
PAYLOADS = st.one_of(TEXTS, st.from_regex(r"\d{0,25}(:\d{0,25}){0,2}", fullmatch=True))


def send_all(store: Store, channels: Sequence[str] = CHANNELS, most: int = 60) -> None:
    """Send payloads of every kind on each of the channels, as a login that may only read."""

    @settings(max_examples=most, deadline=None, database=None)
    @given(payload=PAYLOADS)
    @example(payload="")
    def draw(payload: str) -> None:
        _send(store, channels, payload)

    for payload in KNOWN:
        _send(store, channels, payload)
    draw()


def _send(store: Store, channels: Sequence[str], payload: str) -> None:
    with store.transaction() as tx:
        tx.exec_driver_sql("SET LOCAL ROLE cleave_inspector")
        for channel in channels:
            tx.exec_driver_sql("SELECT pg_notify(%s, %s)", (channel, payload))
