"""`cleave dead-letters`: what could not be handled, and how to put it back."""

from __future__ import annotations

import base64
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from controller.bootstrap import Application, application
from controller.client.dead_letters import DeadLetter, reading_dead_letters
from controller.client.postgres_source import PostgresSource
from controller.client.producer import Producer
from controller.entrypoints.commands.options import AsJson, DryRun, Limit, Topic, about, topic_name
from controller.entrypoints.commands.subscriptions import Subscription
from controller.entrypoints.output import emit, rows_table
from controller.services.dead_letters import DeadLetterLog, DeadLetterLogs

CHUNK = 500
"""Messages put back before they are acknowledged: so many come twice at most when it is stopped in between."""
_COLUMNS = ("parked_at", "key", "segment_id", "position", "deliveries", "bytes", "error")

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_letters(
    topic: Topic, subscription: Subscription, limit: Limit = 50, as_json: AsJson = False
) -> None:
    """List a subscription's dead letters, oldest first; changes nothing. With --json each has its payload, in base64."""
    name = topic_name(topic)
    with about(name), application() as cleave:
        log, count = _found(cleave, name, subscription)
        letters: list[DeadLetter] = []
        if count:
            with (
                closing(cleave.log_client(log.data_plane)) as logs,
                reading_dead_letters(logs, log.backing_topic) as reader,
            ):
                letters = reader.read(min(limit, count))
    rows = [_row(letter) for letter in letters]
    title = f"{log.backing_topic}: {count} to put back"
    emit(as_json, rows, rows_table(rows, _COLUMNS, title=title))


@app.command()
def redrive(
    topic: Topic,
    subscription: Subscription,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Messages at most; all without.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into their topic, oldest first, as new messages: every subscription of the topic gets them."""
    name = topic_name(topic)
    with about(name), application() as cleave:
        log, count = _found(cleave, name, subscription)
        due = count if limit is None else min(count, limit)
        done = 0 if dry_run or not due else _put_back(cleave, log, due)
    result = "would be put back" if dry_run else "put back"
    told = due if dry_run else done
    document: dict[str, Any] = {
        "topic": name, "subscription": subscription, "messages": told, "left": count - told, "result": result
    }  # fmt: skip
    emit(
        as_json,
        document,
        Text(f"{name}: {told} dead letters of {subscription} {result}, {count - told} left"),
    )


def _found(cleave: Application, topic: str, subscription: str) -> tuple[DeadLetterLog, int]:
    """The log, and how many messages it has to put back."""
    desk = DeadLetterLogs(cleave.store, cleave.planes)
    log = desk.find(topic, subscription)
    return log, desk.count(log)


def _put_back(cleave: Application, log: DeadLetterLog, count: int) -> int:
    """Each is stored in the topic before it is acknowledged here."""
    done = 0
    with (
        closing(PostgresSource(cleave.settings.database_url.get_secret_value())) as source,
        closing(cleave.log_client(log.data_plane)) as logs,
        reading_dead_letters(logs, log.backing_topic) as reader,
        Producer(source, logs, log.topic, name="redrive") as producer,
    ):
        while done < count:
            letters = reader.read(min(CHUNK, count - done))
            if not letters:
                break
            for letter in letters:
                producer.send(letter.payload, letter.key)
            producer.flush()
            reader.acknowledge(letters[-1])
            done += len(letters)
    return done


def _row(letter: DeadLetter) -> dict[str, Any]:
    origin = letter.origin
    found: dict[str, Any] = {} if origin is None else msgspec.structs.asdict(origin)
    for name in ("parked_at", "published_at"):
        at_ms = found.pop(f"{name}_ms", None)
        found[name] = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
    return {
        "topic": None, "subscription": None, "segment_id": None, "position": None, "deliveries": None, "error": None, "consumer": None,
        **found,
        "key": None if letter.key is None else letter.key.decode(errors="replace"),
        "bytes": len(letter.payload),
        "payload": base64.b64encode(letter.payload).decode(),
    }  # fmt: skip
