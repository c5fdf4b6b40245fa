"""The name that a command records as the requester of an action."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """Return the name of the person who runs this process: the environment variable `CLEAVE_ACTOR` if it is set, for
    shells that share a login; otherwise the login name, or `uid` with the user's id if the id has no name.
    """
    try:
        return os.environ.get("CLEAVE_ACTOR", "").strip() or getpass.getuser()
    except (KeyError, OSError):  # the user of a container may not be in the list of users
        return f"uid {os.getuid()}"
