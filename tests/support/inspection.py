"""Queries of schema inspect as the inspector, and a topic with a history for them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from controller.domain.reshape import plan_merge
from tests.support.store_driver import StoreDriver, request

NAME = "topic://t/n/a"


def ask(driver: StoreDriver, statement: str, **parameters: object) -> list[dict[str, Any]]:
    """Return rows, read with the inspector's rights."""
    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL ROLE cleave_inspector"))
        return [dict(row) for row in tx.execute(text(statement), parameters).mappings()]


def busy_history(driver: StoreDriver) -> int:
    """Create a topic that was split, split again, merged across, and lost its first segment to the collector."""
    topic_id = driver.create(NAME, segments=2, splits=[0, 3]).topic_id
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 5, 1))
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 4, 6))
    prune(driver, topic_id, 0)
    return topic_id


def prune(driver: StoreDriver, topic_id: int, segment_id: int) -> None:
    """Prune a sealed segment."""
    from controller.store.journal.topic_intents import intend_prune

    driver.run(driver.do(intend_prune, topic_id, [segment_id], request()).operation)
