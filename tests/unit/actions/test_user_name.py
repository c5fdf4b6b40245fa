"""The person in whose name a command acts."""

from __future__ import annotations

import getpass

import pytest

from controller.actions.user_name import user_name


@pytest.mark.parametrize(("given", "expected"), [("ann", "ann"), (" ann ", "ann"), ("", None), (None, None)])
def test_a_person_who_shares_a_login_may_give_a_name(
    given: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEAVE_ACTOR", raising=False)
    if given is not None:
        monkeypatch.setenv("CLEAVE_ACTOR", given)

    assert user_name() == (expected or getpass.getuser())
