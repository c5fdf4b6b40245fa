"""Requests for lists that come in pages."""

from __future__ import annotations

import pytest

from controller.command_output import MOST_LISTED, cell
from controller.domain.errors import InvalidInput
from controller.questions.page_keys import write_keys
from controller.questions.question import MOST_OF_A_PAGE, PageRequest


def test_a_page_has_no_more_rows_than_a_page_may() -> None:
    assert PageRequest(limit=MOST_OF_A_PAGE + 1).size == MOST_OF_A_PAGE
    assert PageRequest(limit=3).size == 3


def test_the_rest_of_a_list_is_asked_for_until_the_limit() -> None:
    request = PageRequest(limit=5)

    rest = request.after(write_keys([2]), 2)

    assert rest == PageRequest(limit=3, page=write_keys([2]))
    assert rest is not None
    assert list(rest.keys([int])) == [2]
    assert rest.after(write_keys([5]), 3) is None
    assert request.after(None, 2) is None


def test_the_first_page_begins_after_no_key_and_a_page_that_is_none_is_refused() -> None:
    assert list(PageRequest().keys([int, str])) == [None, None]
    with pytest.raises(InvalidInput, match="is not a page of this list"):
        PageRequest(page="colour").keys([int])


def test_a_cell_names_the_first_values_of_a_long_list() -> None:
    assert cell([1, 2]) == "1, 2"
    assert cell(range(MOST_LISTED + 3)) == str(range(MOST_LISTED + 3))
    assert cell(tuple(range(MOST_LISTED + 3))).endswith(f"{MOST_LISTED - 1}, 3 more")
