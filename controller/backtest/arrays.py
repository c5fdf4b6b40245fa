"""The kinds of arrays here, and what NumPy has no exact type for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Wholes = NDArray[np.int64]
Mask = NDArray[np.bool_]


def any_along(mask: Mask, axis: int) -> Mask:
    """Whether anything is set along an axis."""
    found: Mask = np.logical_or.reduce(mask, axis=axis)
    return found


def is_nan(values: Floats) -> Mask:
    """Where there is no number."""
    found: Mask = np.isnan(values)
    return found
