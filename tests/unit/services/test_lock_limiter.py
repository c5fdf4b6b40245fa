"""The lock limiter's lines in the log: each names the data plane whose transactions were not ended."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.domain.errors import DataPlaneUnavailable
from controller.services.lock_limiter import AFTER_FAILURE_SECONDS, LockLimiter


@pytest.mark.parametrize("error", [DataPlaneUnavailable("away"), RuntimeError("a mistake")])
def test_an_error_is_logged_with_its_data_plane_and_hides_no_other(error: Exception) -> None:
    failing, other = MagicMock(spec=EmbeddedDataPlane), MagicMock(spec=EmbeddedDataPlane)
    failing.end_long_transactions.side_effect = error
    limiter = LockLimiter({"failing": failing, "other": other})

    with capture_logs() as lines:
        pause_seconds = limiter._round()

    assert [line["data_plane"] for line in lines] == ["failing"]
    assert pause_seconds == AFTER_FAILURE_SECONDS
    other.end_long_transactions.assert_called_once_with()
