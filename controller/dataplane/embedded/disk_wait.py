"""Holds the statement that lets the commit of a transaction on embedded logs not wait for the disk.

If the journal is in the same server, such a transaction need not wait, because a crash loses only the latest
commits: the journal's record of the transaction is committed later, and cannot survive without it.
"""

from __future__ import annotations

NO_DISK_WAIT = "SELECT set_config('synchronous_commit', 'off', true);"
"""Applies to the transaction in which it is executed."""
