"""Topic names in use: a name that exists is refused, and a name that is used again continues its segment ids."""

from __future__ import annotations

from sqlalchemy import Connection, text

from controller.domain.errors import TopicExists
from controller.store.topics.topics import TopicState

_LAST_OF_NAME = """
    SELECT state, next_segment_id FROM cleave.topic WHERE name = :name ORDER BY topic_id DESC LIMIT 1
"""


def demand_free_name(tx: Connection, name: str) -> int:
    """Return the first segment id that no deleted topic of this name has reserved; 0 if no topic ever had the name.
    Raises TopicExists if a topic that is not deleted has the name.

    The name is not locked. If another transaction uses the name before the caller inserts its topic row, the database
    refuses the row, for which `Store.transaction` raises TopicExists or LostRace.
    """
    last = tx.execute(text(_LAST_OF_NAME), {"name": name}).one_or_none()
    if last is None:
        return 0
    if last.state != TopicState.DELETED:
        raise TopicExists(
            f"topic {name} exists already ({last.state}); delete it first or choose another name"
        )
    return int(last.next_segment_id)
