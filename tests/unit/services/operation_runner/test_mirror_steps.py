"""Steps on a topic whose layout a broker keeps: operations that this program does not understand, and checks that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest.mock import MagicMock

import pytest

from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import CleaveError, DataPlaneUnavailable, Terminal, Unsupported
from controller.domain.operation import MIRRORED, OperationKind
from controller.domain.operation_steps import Step
from controller.services.operation_runner.call_all import Result
from controller.services.operation_runner.mirror_steps import MirrorSteps
from tests.support.operations import make_operation


class CallsAtOnce:
    """Makes the calls without a claim."""

    def __call__(self, calls: Sequence[Callable[[], Result]], seconds: float | None = None) -> list[Result]:
        return [call() for call in calls]


@pytest.mark.parametrize(
    "parameters",
    [{}, {"child_ranges": 2}, {"child_ranges": "0000-ffff"}],
    ids=["no ranges", "another form", "a text"],
)
def test_a_reshape_that_names_no_child_ranges_is_unsupported(parameters: dict[str, object]) -> None:
    operation = make_operation(
        OperationKind.SPLIT, parameters={MIRRORED: True, "bucket_count": 1, **parameters}
    )
    keeper = MagicMock(spec=LayoutKeeper)

    with pytest.raises(Unsupported, match="operation 7 names no child ranges"):
        MirrorSteps(MagicMock(), lambda: keeper, operation, CallsAtOnce()).perform(Step.RESHAPE_ON_BROKER)
    keeper.ask_reshape.assert_not_called()


@pytest.mark.parametrize(
    "error", [DataPlaneUnavailable("away"), Terminal("refused")], ids=["away", "refused"]
)
def test_a_reshape_ends_although_the_logs_cannot_be_checked(error: CleaveError) -> None:
    """The mirror checks them later."""
    keeper, store = MagicMock(spec=LayoutKeeper), MagicMock()
    keeper.check_logs.side_effect = error
    operation = make_operation(OperationKind.SPLIT, parameters={MIRRORED: True})

    detail = MirrorSteps(store, lambda: keeper, operation, CallsAtOnce()).perform(Step.FINISH)

    assert detail == {}
    store.transaction.assert_not_called()
