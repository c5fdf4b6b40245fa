"""Types of arrays in this package, and NumPy functions without an exact return type."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Wholes = NDArray[np.int64]
Mask = NDArray[np.bool_]


def any_along(mask: Mask, axis: int) -> Mask:
    """Return `mask` without the axis: True where any value along the axis is set."""
    result: Mask = np.logical_or.reduce(mask, axis=axis)
    return result


def is_nan(values: Floats) -> Mask:
    """Return True for each value that is not a number."""
    result: Mask = np.isnan(values)
    return result
