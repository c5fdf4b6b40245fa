"""Requests for lists that come in pages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controller.command_output import MOST_LISTED, cell
from controller.domain.errors import InvalidInput
from controller.domain.names import LONGEST_NAME, MAX_NAME_BYTES, MOST_TOPIC_BYTES
from controller.domain.whole_numbers import MOST
from controller.questions.page_keys import read_keys, write_keys
from controller.questions.question import LONGEST_PAGE, MOST_OF_A_PAGE, PageRequest, Question, all_questions

LONGEST_TEXTS = {
    **dict.fromkeys(("topic", "namespace", "load"), (MOST_TOPIC_BYTES, MOST_TOPIC_BYTES)),
    **dict.fromkeys(("subscription", "cluster", "broker"), (LONGEST_NAME, MAX_NAME_BYTES)),
    "policy": (1000, 1000),
    **dict.fromkeys(("hash_range", "bucket", "lane", "parameter", "reason"), (100, 100)),
}
"""Characters and bytes at most of the text keys of questions, by column."""


def longest_key(column: str, kind: type, character: str) -> object:
    """The longest key of the column that consists of the character, if it is a text."""
    if kind is str:
        characters, size = LONGEST_TEXTS[column]
        return character * min(characters, size // len(character.encode()))
    return MOST if kind is int else datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("character", ['"', "é", "語", "𝔞"])
@pytest.mark.parametrize("question", all_questions(), ids=lambda question: question.name)
def test_the_next_page_of_the_longest_keys_is_accepted(question: Question, character: str) -> None:
    keys = [longest_key(column, kind, character) for column, kind in question.keys.items()]

    page = write_keys(keys)

    assert len(page) <= LONGEST_PAGE
    assert read_keys(page, [*question.keys.values()]) == keys


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
