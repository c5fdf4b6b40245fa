"""The error tree: what every edge relies on when it maps errors."""

from __future__ import annotations

import pickle

import pytest

from controller.domain import errors
from controller.domain.errors import CleaveError, InvalidInput, Retryable, Terminal


def _leaves(cls: type[CleaveError]) -> list[type[CleaveError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _leaves(child))]


# Other floors may add leaves of their own; the tree at the head of the file draws those everybody raises.
ALL_ERRORS = [cls for cls in _leaves(CleaveError) if cls.__module__ == errors.__name__]


@pytest.mark.parametrize("error_class", ALL_ERRORS[1:], ids=lambda cls: cls.__name__)
def test_every_error_is_either_retryable_or_terminal(error_class: type[CleaveError]) -> None:
    assert issubclass(error_class, Retryable) != issubclass(error_class, Terminal)


@pytest.mark.parametrize("error_class", ALL_ERRORS, ids=lambda cls: cls.__name__)
def test_every_error_is_drawn_in_the_tree_at_the_head_of_the_file(error_class: type[CleaveError]) -> None:
    assert error_class.__name__ in str(errors.__doc__)


@pytest.mark.parametrize("error_class", ALL_ERRORS, ids=lambda cls: cls.__name__)
def test_an_error_survives_the_way_between_processes(error_class: type[CleaveError]) -> None:
    error = error_class("segment 3 is gone; look again")

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (error_class, "segment 3 is gone; look again")


def test_the_delay_survives_the_way_between_processes() -> None:
    assert pickle.loads(pickle.dumps(Retryable("later", delay_seconds=7.5))).delay_seconds == 7.5


def test_a_message_is_one_line_whatever_the_driver_said() -> None:
    assert str(InvalidInput("connection refused\n\tis the server running?")) == (
        "connection refused is the server running?"
    )
