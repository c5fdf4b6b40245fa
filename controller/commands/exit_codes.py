"""Exit codes of the command `cleave`, by the kind of the error.

0 success; 2 the request cannot succeed as it is (bad input, not found, conflict, not possible on that data plane); 75 try again
later; 1 any other failure (an aborted operation, a missing right, a finding of `doctor` or `check-history`); 74 (EX_IOERR) standard
output cannot be written, as on a full disk.
"""

from __future__ import annotations

from controller.domain.errors import (
    CleaveError,
    Conflict,
    InvalidInput,
    NotFound,
    Retryable,
    StoreRefused,
    Unsupported,
)

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_NOT_WRITTEN, EXIT_TRY_AGAIN = 1, 2, 74, 75
BAD_INPUT = (InvalidInput, NotFound, Conflict, Unsupported)


def exit_code(kind: type[CleaveError]) -> int:
    """Return the exit code for an error of this type: 2 for the types in `BAD_INPUT` and StoreRefused, 75 for any other Retryable,
    otherwise 1.
    """
    if issubclass(kind, StoreRefused):
        return EXIT_BAD_INPUT
    if issubclass(kind, Retryable):
        return EXIT_TRY_AGAIN
    return EXIT_BAD_INPUT if issubclass(kind, BAD_INPUT) else EXIT_FAILED
