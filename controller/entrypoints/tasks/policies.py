"""Setting a policy from a form: at once, or only to see what it would change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.actions.fields import fill_in
from controller.bootstrap import Application
from controller.entrypoints.output import emit, rows_table, say
from controller.entrypoints.reading import snapshot
from controller.entrypoints.tasks import dag_runs
from controller.entrypoints.tasks.access import Extras, cleave_at
from controller.entrypoints.tasks.forms import PolicyForm
from controller.services import policy_admin
from controller.services.policy_admin import Changed

Document = dict[str, Any]


def set_policy(
    *, dsn: str, extras: Extras, params: Mapping[str, object], request_key: str, actor: str
) -> Document:
    """Writes the level anew; see `PolicyForm`. A repeat writes the same."""
    form = fill_in(PolicyForm, params)
    with cleave_at(dsn, extras) as app:
        if form.dry_run:
            document = preview_policy(app, form)
            say(document["sentence"])
            dag_runs.note(app.settings, request_key, f"Dry run: {document['sentence']}")
            return document
        changed = policy_admin.change(app.store, form.level, form.changed, actor=actor)
    rows = _rows(changed)
    emit(False, None, rows_table(rows, title=f"{form.level}: {len(rows) or 'no'} knobs changed"))
    dag_runs.note(app.settings, request_key, f"policy of {form.level}: {_said(rows) or 'nothing changed'}")
    return {"level": form.level, "changes": rows}


def preview_policy(app: Application, form: PolicyForm) -> Document:
    """What would be changed, and which topics would be treated differently at once; nothing is."""
    with snapshot(app.store) as tx:
        found = policy_admin.preview(tx, app.planes, form.level, form.changed)
    rows = _rows(found.changed)
    others = [
        {"topic": one.topic, "now": list(map(str, one.now)), "then": list(map(str, one.then))}
        for one in found.others
    ]
    knobs = _said(rows)
    at_once = f"{len(others)} of {found.asked} topics would be treated differently at once"
    if found.asked < found.topics:
        at_once = f"looked at {found.asked} of {found.topics} topics, {len(others)} of them would be treated differently at once"
    named = ": " + ", ".join(one.topic for one in found.others[:5]) if others else ""
    return {
        "level": form.level,
        "changes": rows,
        "others": others,
        "asked": found.asked,
        "topics": found.topics,
        "dry_run": True,
        "sentence": f"{form.level} would have {knobs or 'what it has'}; {at_once}{named}",
    }


def _said(rows: list[Document]) -> str:
    return ", ".join(f"{row['knob']} from {row['was']} to {row['value']}" for row in rows)


def _rows(changed: Changed) -> list[Document]:
    knobs = [
        knob
        for knob in {**changed.before, **changed.after}
        if changed.before.get(knob) != changed.after.get(knob)
    ]
    return [
        {"knob": knob, "was": changed.before.get(knob), "value": changed.after.get(knob)} for knob in knobs
    ]
