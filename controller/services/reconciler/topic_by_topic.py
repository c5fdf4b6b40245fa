"""Compares one topic after another, so that an error of one topic does not keep the others from being compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from controller import telemetry
from controller.domain.errors import CleaveError, StoreUnavailable
from controller.services.reconciler.log_differences import Finding
from controller.store import set_aside
from controller.store.postgres.engine import Store
from controller.store.set_aside import SetAside

log = telemetry.get_logger(__name__)


def compare_each(
    store: Store,
    topic_ids: Collection[int],
    compare: Callable[[int], Iterable[Finding]],
    *,
    failure: str,
    dry_run: bool,
) -> list[Finding]:
    """Call `compare` for each topic, and return the findings of all calls. If `compare` raises an error for a topic,
    the error is logged with the text `failure`, and the next topic is compared. If the error is not a CleaveError,
    the topic is also recorded in the view `inspect.set_aside`, unless this is a dry run. StoreUnavailable is raised
    at once, and the findings so far are lost. Also raises the errors of `Store.transaction` if the view cannot be
    written.
    """
    findings: list[Finding] = []
    set_aside_topics: list[SetAside] = []
    for topic_id in topic_ids:
        try:
            findings += compare(topic_id)
        except StoreUnavailable:
            raise
        except CleaveError as error:
            log.warning(failure, topic_id=topic_id, error=str(error))
        except Exception as error:
            log.exception(failure, topic_id=topic_id)
            reason = f"{failure}: {type(error).__name__}: {error}"
            set_aside_topics.append(SetAside(f"topic {topic_id}", reason, topic_id))
    if set_aside_topics and not dry_run:
        store.in_transaction(set_aside.note, set_aside.Batch.MAINTENANCE, set_aside_topics)
    return findings
