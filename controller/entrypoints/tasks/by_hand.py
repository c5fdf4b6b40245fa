"""What people ask for in a form: split, merge, rebucket, create, delete. One request, one operation.

The key of the request comes with the call; whatever is tried again under the same key (a retry, a cleared task)
waits for the operation that the first attempt intended, even if that attempt died right after its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controller.bootstrap import Application
from controller.domain.errors import InvalidInput, NotFound
from controller.domain.layout import SegmentLayout
from controller.entrypoints.output import created, emit, layout_rows, operation_document, rows_table
from controller.entrypoints.rehearsal import preview_document
from controller.entrypoints.running import manual_request, see_through
from controller.entrypoints.tasks import dag_runs
from controller.entrypoints.tasks.access import Extras, cleave_at
from controller.entrypoints.tasks.forms import (
    CreateForm,
    DeleteForm,
    Form,
    MergeForm,
    RebucketForm,
    SplitForm,
    fill_in,
)
from controller.services import segment_admin, topic_admin
from controller.services.segment_admin import Planner
from controller.store.journal import operations
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.topics import layouts, topics

Params = Mapping[str, object]
Document = dict[str, Any]
ReshapeForm = SplitForm | MergeForm | RebucketForm


def split_segment(*, dsn: str, extras: Extras, params: Params, request_key: str, actor: str) -> Document:
    """At the midpoint, at cut points, or into equal parts; see `SplitForm`."""
    form = fill_in(SplitForm, params)
    with cleave_at(dsn, extras) as app:
        return _reshape(app, form, request_key, actor)


def merge_segments(*, dsn: str, extras: Extras, params: Params, request_key: str, actor: str) -> Document:
    """Two neighbours into one; see `MergeForm`."""
    form = fill_in(MergeForm, params)
    with cleave_at(dsn, extras) as app:
        return _reshape(app, form, request_key, actor)


def rebucket_segment(*, dsn: str, extras: Extras, params: Params, request_key: str, actor: str) -> Document:
    """The same range with another number of entry buckets; see `RebucketForm`."""
    form = fill_in(RebucketForm, params)
    with cleave_at(dsn, extras) as app:
        return _reshape(app, form, request_key, actor)


def create_topic(*, dsn: str, extras: Extras, params: Params, request_key: str, actor: str) -> Document:
    """A topic of equal segments; see `CreateForm`."""
    form = fill_in(CreateForm, params)
    with cleave_at(dsn, extras) as app:
        if form.dry_run:
            rows = layout_rows(SegmentLayout.initial(form.segments, now=0))
            return _would(f"{form.topic} would have", form.topic, rows)

        def intend(request: Request) -> Intent:
            return topic_admin.create_topic(
                app.store,
                app.planes,
                form.topic,
                request,
                data_plane=form.data_plane,
                segments=form.segments,
                properties=form.properties,
            )

        return _once(app, form, intend, request_key, actor)


def delete_topic(*, dsn: str, extras: Extras, params: Params, request_key: str, actor: str) -> Document:
    """The topic with all its messages; see `DeleteForm`. Raises InvalidInput unless it is named twice."""
    form = fill_in(DeleteForm, params)
    if not form.dry_run and form.confirm != form.topic:
        raise InvalidInput(
            f"confirm={form.confirm!r} is not the topic {form.topic}; type its name again to delete it for good"
        )
    with cleave_at(dsn, extras) as app:
        if form.dry_run:
            with app.store.transaction() as tx:
                layout = layouts.load_layout(tx, topics.find_topic(tx, form.topic).topic_id)
            return _would(f"{form.topic} would lose", form.topic, layout_rows(layout))
        return _once(
            app,
            form,
            lambda request: topic_admin.delete_topic(app.store, form.topic, request),
            request_key,
            actor,
        )


def planner_of(form: ReshapeForm) -> Planner:
    """What plans the reshape that the form asks for."""
    match form:
        case SplitForm():
            return segment_admin.splitting(form.segment, at=form.cut_points or (), parts=form.parts)
        case MergeForm():
            return segment_admin.merging(form.first, form.second)
        case RebucketForm():
            return segment_admin.rebucketing(form.segment, form.bucket_count)


def _reshape(app: Application, form: ReshapeForm, request_key: str, actor: str) -> Document:
    planner = planner_of(form)
    if form.dry_run:
        document = preview_document(segment_admin.preview(app.store, app.planes, form.topic, planner))
        told = f"{document['kind']} would seal {document['parents']} and create"
        title = f"{form.topic} at epoch {document['epoch']}: {told}"
        emit(False, None, rows_table(document["creates"], title=title))
        return {**document, "dry_run": True}
    return _once(
        app,
        form,
        lambda request: segment_admin.submit(app.store, app.planes, form.topic, planner, request),
        request_key,
        actor,
    )


def _once(
    app: Application, form: Form, intend: Callable[[Request], Intent], request_key: str, actor: str
) -> Document:
    """Intend it and have it run to its end. Where the first attempt has deleted the topic, the key's operation is the
    answer.
    """
    try:
        intent = intend(manual_request(app, form.reason, request_key=request_key, actor=actor))
    except NotFound:
        with app.store.transaction() as tx:
            first = operations.find_by_request_key(tx, request_key)
        if first is None:
            raise
        intent = Intent(first, repeated=True)
    document = operation_document(see_through(app, intent, form.timeout_seconds))
    columns = ("operation_id", "topic", "kind", "state", "epoch", "parents", "children")
    row = {**document, "children": created(document["creates"])}
    emit(False, None, rows_table([row], columns))
    dag_runs.note(app.settings, request_key, _sentence(row))
    return document


def _sentence(row: Document) -> str:
    sealed = f" of segment {', '.join(map(str, row['parents']))}" if row["parents"] else ""
    return f"operation {row['operation_id']}: {row['kind']}{sealed} on {row['topic']} is {row['state']}"


def _would(title: str, topic: str, rows: list[Document]) -> Document:
    emit(False, None, rows_table(rows, title=title))
    return {"topic": topic, "segments": rows, "dry_run": True}
