"""`cleave subscriptions` and `cleave consumers`: who reads a topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from controller.bootstrap import application
from controller.domain.errors import InvalidInput
from controller.entrypoints.commands.options import (
    AsJson,
    DryRun,
    NoWait,
    Reason,
    TimeoutSeconds,
    Topic,
    about,
    topic_name,
)
from controller.entrypoints.commands.topics import finish
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reading import reading
from controller.entrypoints.rehearsal import stage
from controller.entrypoints.running import manual_request
from controller.services import subscription_lag, topic_admin
from controller.store.postgres import inspection
from controller.store.topics import consumers, inspected, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind

app = typer.Typer(no_args_is_help=True)
consumers_app = typer.Typer(no_args_is_help=True)

Subscription = Annotated[str, typer.Argument(help="Name of the subscription.")]
Consumer = Annotated[str, typer.Argument(help="Name of the consumer, unique within its subscription.")]


@app.command()
def create(
    topic: Topic,
    subscription: Subscription,
    kind: Annotated[
        SubscriptionKind,
        typer.Option(
            case_sensitive=False,
            help=f"Who reads: in order, shared, or by checkpoints; {', '.join(k.value.lower() for k in SubscriptionKind)}.",
        ),
    ] = SubscriptionKind.STREAM,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Create a subscription at the earliest position of every segment."""
    name = topic_name(topic)
    with about(name), application() as cleave, stage(cleave, dry_run) as store:
        request = manual_request(cleave, reason)
        intent = topic_admin.create_subscription(store, name, subscription, request, kind=kind)
        if dry_run:
            _tell("would be created", name, subscription, as_json, kind=kind.value)
            return
        finish(cleave, intent, no_wait=no_wait, timeout_seconds=timeout_seconds, as_json=as_json)


@app.command("list")
def list_subscriptions(topic: Topic, as_json: AsJson = False) -> None:
    """List a topic's subscriptions and their consumers."""
    with reading() as tx:
        row = inspected.find_topic(tx, topic_name(topic))
        rows = inspection.rows(
            tx,
            "SELECT * FROM inspect.subscriptions WHERE topic_id = :t ORDER BY subscription",
            t=row.topic_id,
        )
    emit(
        as_json,
        rows,
        rows_table(
            rows,
            (
                "subscription",
                "kind",
                "state",
                "consumers",
                "consumer_names",
                "created_at",
            ),
        ),
    )


@app.command("set")
def set_sharing(
    topic: Topic,
    subscription: Subscription,
    parents_block: Annotated[
        bool | None,
        typer.Option(
            "--parents-block/--no-parents-block",
            help="Whether a segment waits until all that it descends from is read. Without: less lag, and no order over a split.",
        ),
    ] = None,
    drain_consumers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_536,
            help="So many consumers at most share the entry buckets of a sealed segment until it is read.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Set how a stream subscription is shared out over its consumers; what is not named stays."""
    name = topic_name(topic)
    if parents_block is None and drain_consumers is None:
        raise InvalidInput("nothing to set; give --parents-block, --no-parents-block or --drain-consumers")
    with about(name), application() as cleave, stage(cleave, dry_run) as store, store.transaction() as tx:
        subscriptions.set_sharing(
            tx,
            topics.find_topic(tx, name).topic_id,
            subscription,
            parents_block=parents_block,
            drain_consumers=drain_consumers,
        )
    _tell("would be set" if dry_run else "set", name, subscription, as_json)


@app.command()
def delete(
    topic: Topic,
    subscription: Subscription,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Delete a subscription and its positions on every segment."""
    name = topic_name(topic)
    with about(name), application() as cleave, stage(cleave, dry_run) as store:
        intent = topic_admin.delete_subscription(store, name, subscription, manual_request(cleave, reason))
        if dry_run:
            _tell("would be deleted", name, subscription, as_json)
            return
        finish(cleave, intent, no_wait=no_wait, timeout_seconds=timeout_seconds, as_json=as_json)


def _tell(what: str, topic: str, subscription: str, as_json: bool, **more: str) -> None:
    """One line of what happened, or would."""
    document = {"topic": topic, "subscription": subscription, **more, "result": what}
    emit(as_json, document, Text(f"{topic}: {' '.join((*more.values(), subscription))} {what}"))


@consumers_app.command()
def register(topic: Topic, subscription: Subscription, consumer: Consumer, as_json: AsJson = False) -> None:
    """Register a consumer; the worker evaluates the consumer lane at once."""
    name = topic_name(topic)
    with about(name), application() as cleave, cleave.store.transaction() as tx:
        consumers.register(tx, topics.find_topic(tx, name).topic_id, subscription, consumer)
    _tell("registered", name, subscription, as_json, consumer=consumer)


@consumers_app.command()
def unregister(topic: Topic, subscription: Subscription, consumer: Consumer, as_json: AsJson = False) -> None:
    """Take a consumer out; the worker evaluates again."""
    name = topic_name(topic)
    with about(name), application() as cleave, cleave.store.transaction() as tx:
        consumers.unregister(tx, topics.find_topic(tx, name).topic_id, subscription, consumer)
    _tell("unregistered", name, subscription, as_json, consumer=consumer)


_ASSIGNMENTS = """
    SELECT topic, topic_id, subscription, kind, segment_id, hash_range, state, is_drained, barrier, waits_for,
           consumers AS consumer_names
      FROM inspect.assignments WHERE topic_id = :t ORDER BY subscription, hash_range, segment_id
"""


_WHY = """
    SELECT subscription, segment_id, hash_range, state, bucket, owner, successor, reason, since, waits_for, held_by
      FROM inspect.buckets WHERE topic_id = :t AND (CAST(:s AS text) IS NULL OR subscription = :s)
     ORDER BY subscription, hash_range, segment_id, bucket
"""


@consumers_app.command()
def why(
    topic: Topic,
    subscription: Annotated[str | None, typer.Argument(help="Name of the subscription; all without.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say of each entry bucket who reads it, or why nobody does, since when, and who holds what it waits for."""
    with reading() as tx:
        row = inspected.find_topic(tx, topic_name(topic))
        rows = inspection.rows(tx, _WHY, t=row.topic_id, s=subscription)
    shown = (
        "subscription",
        "segment_id",
        "hash_range",
        "bucket",
        "owner",
        "reason",
        "since",
        "waits_for",
        "held_by",
    )
    emit(as_json, rows, rows_table(rows, shown))


@consumers_app.command()
def lag(topic: Topic, subscription: Subscription, as_json: AsJson = False) -> None:
    """Count what is not acknowledged, for each entry bucket where the data plane can, whether anybody reads it or not."""
    name = topic_name(topic)
    with about(name), application() as cleave:
        rows = [asdict(one) for one in subscription_lag.lag(cleave.store, cleave.planes, name, subscription)]
    shown = ("segment_id", "hash_range", "state", "bucket", "owners", "messages", "error")
    emit(as_json, rows, rows_table(rows, shown))


@consumers_app.command("list")
def list_consumers(topic: Topic, as_json: AsJson = False) -> None:
    """List which consumer owns which segment, and which segments are withheld until their ancestors are drained."""
    with reading() as tx:
        row = inspected.find_topic(tx, topic_name(topic))
        rows = inspection.rows(tx, _ASSIGNMENTS, t=row.topic_id)
    columns = ("subscription", "segment_id", "hash_range", "state", "barrier", "waits_for", "consumer_names")
    emit(as_json, rows, rows_table(rows, columns))
