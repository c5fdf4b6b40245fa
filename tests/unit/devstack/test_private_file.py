"""Files with a password in them."""

from __future__ import annotations

from pathlib import Path

from controller.devstack.private_file import write_private


def test_a_file_is_for_its_owner_alone_whatever_was_there_before(tmp_path: Path) -> None:
    path, draft = tmp_path / "password", tmp_path / "password.new"
    for one in (path, draft):
        one.write_text("older, and longer")
        one.chmod(0o644)

    write_private(path, "secret")

    assert path.read_text() == "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not draft.exists()
