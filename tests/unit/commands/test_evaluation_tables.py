"""Tables of evaluations: the same texts for an evaluation that was just made and for one of the decision log."""

from __future__ import annotations

import json

from controller.commands import evaluation_tables
from controller.domain.decision import Evaluation, Merge, Recut, Split


def test_an_action_names_its_segments_also_when_it_is_read_from_the_log() -> None:
    made = Evaluation((Split(3), Merge(1, 2), Recut((4, 5, 6), (0x8000,)))).to_document()
    read = json.loads(json.dumps(made))

    rows = evaluation_tables.rows(made, 0)
    assert [row["segment"] for row in rows] == ["3", "1+2", "4+5+6"]
    assert evaluation_tables.rows(read, 0) == rows
