"""`cleave migrate`: applies the schema and its migrations."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from controller.command_output import emit, rows_table
from controller.commands.options import AsJson, DryRun
from controller.settings import load_settings
from controller.store.postgres import migrations


def migrate(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="CLEAVE_OWNER_URL", help="Database URL of the owner. Default: CLEAVE_DATABASE_URL."
        ),
    ] = None,
    drop_dependent_views: Annotated[
        bool,
        typer.Option(
            "--drop-dependent-views",
            help="Drop views of other owners that depend on views of schema inspect, if the latter are rebuilt.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Apply the pending migrations to the database and print their names; with `--dry-run` print what would change, and change nothing.
    `url` None: the database in the settings. Raises the errors of `migrations.migrate`, or in a dry run those of `migrations.plan`. The
    help text is in `command_list`.
    """
    target = url or load_settings().database_url.get_secret_value()
    if dry_run:
        planned = _planned(migrations.plan(target), drop_dependent_views)
        rows = [{"would": act, "what": name} for act, names in planned.items() for name in names]
        emit(
            as_json,
            {f"would_{act.replace(' ', '_')}": names for act, names in planned.items()},
            rows_table(rows, ("would", "what")),
        )
        return
    names = migrations.migrate(target, drop_dependent_views=drop_dependent_views)
    rows = [{"applied": name} for name in names]
    emit(as_json, {"applied": names}, rows_table(rows, ("applied",)) if rows else Text("up to date"))


def _planned(plan: migrations.Plan, drop_dependent_views: bool) -> dict[str, list[str]]:
    """Return everything that a run would do, by kind of change, in the order of the run. A kind without changes has an empty list. Objects
    of other owners are under `drop`, or under `stop at` if `drop_dependent_views` is False, because the run would raise Conflict.
    """
    readers = (
        [f"{', '.join(migrations.READERS)}: views and functions of schema inspect"] if plan.views else []
    )
    return {
        "drop" if drop_dependent_views else "stop at": list(plan.dependents),
        "create role": list(plan.roles),
        "apply": plan.names,
        "grant": [*readers, *(grant.statement for grant in plan.grants)],
        "set default": list(plan.defaults),
        "revoke": [f"from PUBLIC: {right}" for right in plan.public_rights],
        "grant to cleave_owner": list(plan.roles_of_owner),
    }
