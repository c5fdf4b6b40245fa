"""Names the embedded plane takes for logs and subscriptions."""

from __future__ import annotations

import pytest

from controller.dataplane.embedded.names import MAX_NAME_BYTES, checked
from controller.domain.errors import InvalidInput


@pytest.mark.parametrize("name", ["", "a\0b", "a\ud800b", "ü" * (MAX_NAME_BYTES // 2 + 1)])
def test_a_name_that_cannot_be_stored_is_refused_by_its_kind(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^subscription name"):
        checked("subscription", name)


def test_a_name_that_can_be_stored_is_taken_as_it_is() -> None:
    assert checked("subscription", "ü" * (MAX_NAME_BYTES // 2)) == "ü" * (MAX_NAME_BYTES // 2)
