"""Selects the account that runs PostgreSQL when this process is root, and checks what the account can access.

PostgreSQL refuses to run as root, which is the user of many containers. An existing account is used. No account is
created, and no permission on a directory is widened.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from pathlib import Path

from controller.devstack.failure import DevstackFailed

_CANDIDATES = ("postgres", "nobody")


def server_account() -> pwd.struct_passwd | None:
    """Return the account that runs PostgreSQL; None unless this process is root. Raises DevstackFailed if this machine has neither an
    account `postgres` nor `nobody`.
    """
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise DevstackFailed(
        f"PostgreSQL does not run as root and there is no user {' or '.join(_CANDIDATES)}: "
        "run as an ordinary user, or add one with 'useradd postgres'"
    )


def reachable_by(account: pwd.struct_passwd, path: Path) -> bool:
    """Return True if the account may enter the directory or run the file, including all parent directories. This process must be root."""
    result = subprocess.run(
        ["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)],
        cwd="/",
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=(),
        check=False,
    )
    return result.returncode == 0


def private_directory(path: Path, account: pwd.struct_passwd) -> Path:
    """Create `path` with mode 0700, owned by the account, or use the existing directory if it belongs to the account or to root and
    others cannot write to it. Return the path.

    Raises DevstackFailed for any other directory, file or link: the parent directory may be writable by everyone, so another user may
    have created it.
    """
    try:
        path.mkdir(mode=0o700)
        os.chown(path, account.pw_uid, account.pw_gid)
    except FileExistsError:
        pass
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, account.pw_uid) or status.st_mode & 0o022:
        raise DevstackFailed(
            f"{path} exists and belongs to another user, or is writable by others; remove it and try again"
        )
    return path
