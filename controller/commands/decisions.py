"""`cleave decisions`: list the decision log, and replay its decisions from their stored inputs.

A replay runs in this process; with a server, only the stored inputs come from the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from controller.clock import to_ms
from controller.command_output import cell, emit, rows_table
from controller.commands import completion, evaluation_tables
from controller.commands.actions import group
from controller.commands.options import AsJson, From, To
from controller.commands.read_only_store import reading
from controller.commands.remote_commands import demand_database
from controller.commands.server_choice import ask
from controller.domain.decision import Lane
from controller.domain.decision_replay import Replay
from controller.domain.decision_replay import replay as made_again
from controller.domain.errors import InvalidInput
from controller.domain.formatting import counted
from controller.domain.names import topic_name
from controller.questions import evaluations
from controller.questions.decisions import LIST_INPUTS, SHOW_INPUTS
from controller.questions.evaluations import stored_answer
from controller.questions.spans import span
from controller.settings import load_settings

_SHOWN_IN_FULL = 10
"""Maximum number of differing decisions that are shown with all actions and refusals."""

STORED, REPLAYED = "stored", "replayed"


def replay(
    decision_id: Annotated[
        int | None, typer.Argument(metavar="ID", help="Id of the decision, as in `cleave decisions list`.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--all", help="Topic of which to replay every decision.", autocompletion=completion.topics
        ),
    ] = None,
    from_history: Annotated[
        bool,
        typer.Option("--from-history", help="Recompute the loads of the topic from the recorded rates."),
    ] = False,
    since: From = None,
    until: To = None,
    as_json: AsJson = False,
) -> None:
    """Replay decisions from their stored inputs, and compare the results bit for bit. Exit with 1 if a result differs."""
    if (decision_id is None) == (topic is None):
        raise InvalidInput("give either the id of a decision or --all TOPIC")
    if decision_id is not None:
        if since is not None or until is not None or from_history:
            raise InvalidInput("--from, --to and --from-history need --all TOPIC")
        is_same = _replay_one(decision_id, as_json)
    elif from_history:
        is_same = _retrace(topic or "", since, until, as_json)
    else:
        is_same = _replay_all(topic or "", since, until, as_json)
    if not is_same:
        raise typer.Exit(1)


def _replay_one(decision_id: int, as_json: bool) -> bool:
    """Replay the decision and print the result. Return True if the results are the same; inputs that cannot be read count as different.
    Raises InvalidInput for an invalid id, and NotFound.
    """
    [row] = ask(SHOW_INPUTS, {"decision_id": decision_id}, limit=1)
    again = _again(row)
    emit(
        as_json,
        _document(row, again),
        rows_table(_rows(row, again), _columns(again), title=_title(row, again)),
    )
    return again.is_same


def _replay_all(topic: str, since: str | None, until: str | None, as_json: bool) -> bool:
    """Replay all decisions of the topic in the span and print the result. Return True if none differs, also if
    there is none; inputs that cannot be read count as different. Raises InvalidInput for an invalid span or name, and
    the errors of `ask`, such as TopicNotFound if no topic has or had the name.

    Differing decisions are kept and the others counted, so that memory stays bounded.
    """
    begins, ends = span(since, until)
    replayed, made_by, now_by = 0, set[str](), set[str]()
    differing: list[tuple[Mapping[str, Any], Replay, Sequence[str]]] = []
    name = topic_name(topic)
    for row in ask(LIST_INPUTS, {"topic": name, "since": begins, "until": ends}, limit=None):
        again = _again(row)
        replayed += 1
        made_by.add(row["code_version"])
        now_by |= {again.code_version} if again.code_version else set()
        if not again.is_same:
            differing.append((row, again, ()))
    document = {
        "topic": name,
        "replayed": replayed,
        "same": replayed - len(differing),
        "code_versions": sorted(made_by),
        "replayed_by": sorted(now_by),
        "differing": [_document(row, again) for row, again, _ in differing],
    }
    emit(as_json, document, Group(Text(_summary(document)), *_shown_in_full(differing)))
    return not differing


def _summary(document: Mapping[str, Any]) -> str:
    """Return one sentence about the replay of a topic's decisions: the numbers of replayed and of differing decisions, and the code
    versions. `document` is that of `_replay_all`.
    """
    replayed, same = document["replayed"], document["same"]
    made_by, now_by = (", ".join(document[key]) or "none" for key in ("code_versions", "replayed_by"))
    ended = "all with the same answer" if same == replayed else f"{replayed - same} with another answer"
    return (
        f"{document['topic']}: {counted(replayed, 'decision')} replayed, {ended} "
        f"(made by {made_by}; replayed by {now_by})"
    )


def _shown_in_full(
    differing: Sequence[tuple[Mapping[str, Any], Replay, Sequence[str]]],
) -> Iterator[RenderableType]:
    """Yield the loads that differ, and the table if the result differs, of each of the first `_SHOWN_IN_FULL` differing decisions, then the
    number of the others if there are any. A decision is its row of `inspect.decision_inputs`, its replay, and the loads that differ.
    """
    for row, again, loads in differing[:_SHOWN_IN_FULL]:
        yield Text("\n" + "\n".join((_title(row, again), *loads)))
        if not again.is_same:
            yield rows_table(_rows(row, again), _columns(again))
    if len(differing) > _SHOWN_IN_FULL:
        yield Text(f"\nand {len(differing) - _SHOWN_IN_FULL} more; --json has them all")


def _retrace(topic: str, since: str | None, until: str | None, as_json: bool) -> bool:
    """Replay the decisions of the topic in the span from the recorded rates, and print the result. The decisions of each topic that had the
    name are replayed from the history of that topic; its first decision is not replayed if the history begins after the topic's creation
    (`retraced`). Return True if no load and no result differs, also without decisions; inputs that cannot be read count as different. Raises
    Unsupported if a server is used, InvalidInput for an invalid span or name, and TopicNotFound if no topic has or had the name.
    """
    from controller.commands.history_replay_source import retraced

    demand_database("decisions replay --from-history")
    begins, ends = span(since, until)
    settings, name = load_settings(), topic_name(topic)
    inputs = ask(LIST_INPUTS, {"topic": name, "since": begins, "until": ends}, limit=None)
    rows = {row["decision_id"]: row for row in inputs}
    with reading() as tx:
        replays = [
            replay for same_topic in _by_topic(rows.values()) for replay in retraced(tx, settings, same_topic)
        ]
    differing = [
        (rows[retraced_decision.decided.decision_id], retraced_decision.replay, retraced_decision.differences)
        for retraced_decision in replays
        if not retraced_decision.is_same
    ]
    document = {
        "topic": name,
        "retraced": len(replays),
        "same": len(replays) - len(differing),
        "history": settings.history_location,
        "differing": [
            {**_document(row, again), "loads": list(differences)} for row, again, differences in differing
        ],
    }
    emit(as_json, document, Group(Text(_retraced_summary(document)), *_shown_in_full(differing)))
    return not differing


def _by_topic(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the rows of each topic id, in their order. Topics of one name have several ids if the name was used again."""
    by_topic: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_topic.setdefault(row["topic_id"], []).append(row)
    return list(by_topic.values())


def _retraced_summary(document: Mapping[str, Any]) -> str:
    """Return one sentence about the replay of a topic's decisions from the recorded rates. `document` is that of `_retrace`."""
    retraced, same = document["retraced"], document["same"]
    ended = (
        "all with the same loads and the same answer"
        if same == retraced
        else f"{retraced - same} with another load or another answer"
    )
    return (
        f"{document['topic']}: {counted(retraced, 'decision')} replayed from {document['history']}, {ended}"
    )


def _again(row: Mapping[str, Any]) -> Replay:
    """Replay the stored decision of a row of `inspect.decision_inputs`, and return the result, also if the inputs cannot be read."""
    return made_again(row["situation"], frozenset(map(Lane, row["lanes"])), stored_answer(row))


def _document(row: Mapping[str, Any], again: Replay) -> dict[str, Any]:
    """Return the document of a stored decision: `decision_id`, `topic`, `decided_at`, `lanes`, `code_version`, `replayed_by`, `is_same`,
    and the keys of the stored evaluation (`evaluations.document`). If the replay differs, add the replayed evaluation (`replayed`) and the
    `difference`; if the inputs cannot be read, add the reason (`unreadable`). `row` is a row of `inspect.decision_inputs`.
    """
    now = to_ms(row["decided_at"])
    document = {
        **{name: row[name] for name in ("decision_id", "topic", "decided_at", "lanes", "code_version")},
        "replayed_by": again.code_version,
        "is_same": again.is_same,
        **evaluations.document(again.stored, now),
    }
    if again.replayed is None:
        return {**document, "unreadable": again.unreadable}
    if again.is_same:
        return document
    differs = evaluations.difference(again.stored, again.replayed, (STORED, REPLAYED))
    return {**document, "replayed": evaluations.document(again.replayed, now), "difference": differs}


def _rows(row: Mapping[str, Any], again: Replay) -> list[dict[str, Any]]:
    """Return the rows of the stored evaluation, with the columns of `evaluation_tables.COLUMNS`; if there is a replayed evaluation that
    differs, the rows of `side_by_side` for both.
    """
    now = to_ms(row["decided_at"])
    if again.is_same or again.replayed is None:
        return evaluation_tables.rows(again.stored, now)
    return evaluation_tables.side_by_side(again.stored, again.replayed, (STORED, REPLAYED), now)


def _columns(again: Replay) -> tuple[str, ...]:
    """Return the columns of `_rows`."""
    both_are_shown = not again.is_same and again.replayed is not None
    return ("answer", *evaluation_tables.COLUMNS) if both_are_shown else evaluation_tables.COLUMNS


def _title(row: Mapping[str, Any], again: Replay) -> str:
    """Return three lines: the decision, the outcome of its replay, and the counts of the stored evaluation."""
    made_by, now_by = row["code_version"], again.code_version or "this program"
    by = f"by {made_by}" if made_by == now_by else f"by {now_by}, made by {made_by}"
    lanes = ", ".join(row["lanes"])
    what = f"decision {row['decision_id']} of {row['topic']}, {cell(row['decided_at'])}, lanes {lanes}"
    return f"{what}\nreplayed {by}: {_outcome(again)}\nstored: {evaluation_tables.title(again.stored)}"


def _outcome(again: Replay) -> str:
    """Return the outcome of a replay as text: the same result, inputs that cannot be read with the reason, other actions or refusals, or
    only another `valid_until` or order.
    """
    if again.is_same:
        return "the same answer, bit for bit"
    if again.replayed is None:
        return f"its evaluation input cannot be read ({again.unreadable})"
    alone = evaluations.difference(again.stored, again.replayed, (STORED, REPLAYED))
    if any(items for side in alone.values() for items in side.values()):
        return "another answer"
    if again.stored["valid_until"] != again.replayed["valid_until"]:
        return f"the same actions and refusals, but now {evaluation_tables.title(again.replayed).rpartition('; ')[2]}"
    return "the same actions and refusals, in another order"


app = group("decisions", replay)
