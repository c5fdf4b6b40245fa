"""A process with many open descriptors, like a worker with thousands of watches or an application with as many sockets."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.missing import skip_without

KNOWN_TO_SELECT = 1024
"""The first number that `select.select` refuses."""
_MORE = 400
"""That are left for what a test opens."""


@contextmanager
def crowded() -> Iterator[None]:
    """Raise the limit of descriptors and open so many that those opened in the block have numbers that `select.select` refuses. Restores
    both at the end. Skips the test if the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = KNOWN_TO_SELECT + _MORE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        skip_without(f"a process may have {hard} descriptors here; the test needs {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < KNOWN_TO_SELECT:
            taken.append(os.dup(taken[0]))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
