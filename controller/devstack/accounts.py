"""Which account runs PostgreSQL when we are root, and what that account can reach.

PostgreSQL refuses to run as root, which containers often are. An account that exists already is used. None is ever
created, and no permission on a directory is widened.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from pathlib import Path

from controller.devstack.failure import DevstackFailed
from controller.devstack.process import RunAs

_CANDIDATES = ("postgres", "nobody")


def server_account() -> RunAs | None:
    """The account to switch to: None unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return RunAs(name, entry.pw_uid, entry.pw_gid)
    raise DevstackFailed(
        f"PostgreSQL does not run as root and there is no user {' or '.join(_CANDIDATES)}: "
        "run as an ordinary user, or add one with 'useradd postgres'"
    )


def reachable_by(account: RunAs, path: Path) -> bool:
    """True when the account may enter the directory or run the file, all parents included."""
    done = subprocess.run(
        ["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)],
        cwd="/",
        user=account.user_id,
        group=account.group_id,
        extra_groups=(),
        check=False,
    )
    return done.returncode == 0


def private_directory(path: Path, account: RunAs) -> Path:
    """Create `path` (0700, the account's), or take it if it is exactly that; refuses anything else.

    The place is in a directory everyone can write to, so a directory or link that somebody else put there
    first must not be trusted.
    """
    try:
        path.mkdir(mode=0o700)
        os.chown(path, account.user_id, account.group_id)
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, account.user_id) or found.st_mode & 0o022:
        raise DevstackFailed(f"{path} exists and is not ours: remove it and try again")
    return path
