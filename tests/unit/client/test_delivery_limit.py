"""After how many deliveries, or deaths, a message is not begun again."""

from __future__ import annotations

import pytest

from controller.client.delivery_limit import DeliveryLimit
from controller.client.keyed_schedule import WorkItem
from controller.dataplane.log_client import LogMessage


@pytest.mark.parametrize(
    ("has_dead_letters", "deliveries", "deaths", "is_reached"),
    [
        (True, 2, 0, False),
        (True, 3, 0, True),
        (True, 4, 4, True),
        (False, 100, 2, False),
        (False, 3, 3, True),
    ],
)
def test_deliveries_count_with_a_dead_letter_log_and_deaths_without(
    has_dead_letters: bool, deliveries: int, deaths: int, is_reached: bool
) -> None:
    message = LogMessage((1,), 0, b"k", b"")
    item = WorkItem(message, deliveries=deliveries, deaths=deaths)

    assert DeliveryLimit(3, has_dead_letters).is_reached(item) is is_reached
