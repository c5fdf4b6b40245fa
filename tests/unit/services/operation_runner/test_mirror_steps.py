"""Steps on a topic whose layout a broker keeps, for operations that this program does not understand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest.mock import MagicMock

import pytest

from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import Unsupported
from controller.domain.operation import MIRRORED, OperationKind
from controller.domain.operation_steps import Step
from controller.services.operation_runner.call_all import Result
from controller.services.operation_runner.mirror_steps import MirrorSteps
from tests.support.operations import make_operation


class CallsAtOnce:
    """Makes the calls without a claim."""

    def __call__(self, calls: Sequence[Callable[[], Result]], seconds: float | None = None) -> list[Result]:
        return [call() for call in calls]


@pytest.mark.parametrize("parameters", [{}, {"child_ranges": 2}], ids=["no ranges", "another form"])
def test_a_reshape_that_names_no_child_ranges_is_unsupported(parameters: dict[str, object]) -> None:
    operation = make_operation(
        OperationKind.SPLIT, parameters={MIRRORED: True, "bucket_count": 1, **parameters}
    )
    keeper = MagicMock(spec=LayoutKeeper)

    with pytest.raises(Unsupported, match="operation 7 names no child ranges"):
        MirrorSteps(MagicMock(), lambda: keeper, operation, CallsAtOnce()).perform(Step.RESHAPE_ON_BROKER)
    keeper.ask_reshape.assert_not_called()
