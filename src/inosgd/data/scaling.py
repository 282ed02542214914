"""Scaling: from raw numbers to numbers between -1 and 1, by a range that is declared or, unaccounted, fitted.

A declared range is public knowledge: an age lies between 0 and 120 for any patients. Scaling by it treats each
example alone and costs no privacy. A range fitted to the training data moves with every example in it, which no budget
here accounts for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd._arrays import BoolArray

Numbers = npt.NDArray[Any]
Scaled = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``, which scaling maps onto -1 to 1.

    Guarantee:
        `scaled` is a function of one number at a time. With a range that does not depend on the data it is a part of
        the model and costs nothing. A `fitted` range gives no such guarantee.

    >>> Range(0.0, 120.0).scaled(np.array([0.0, 30.0, 120.0, 500.0])).tolist()
    [-1.0, -0.5, 1.0, 1.0]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not np.isfinite([self.low, self.high]).all() or not np.isfinite(self.high - self.low):
            raise _validate.fail("range", [self.low, self.high], "give two finite numbers, the lower one first")
        if not self.low < self.high:
            raise _validate.fail("range", [self.low, self.high], "the first number must be below the second")

    def scaled(self, values: Numbers) -> Scaled:
        """``values`` brought into the range, then mapped onto -1 to 1."""
        within = np.clip(values.astype(np.float64), self.low, self.high)
        return (2 * ((within - self.low) / (self.high - self.low)) - 1).astype(np.float32)

    def outside(self, values: Numbers) -> BoolArray:
        """Which values do not lie in the range; NaN does not."""
        return ~((values >= self.low) & (values <= self.high))

    @classmethod
    def fitted(cls, values: Numbers) -> Self:
        """The range of ``values``, widened if they are all equal. Unaccounted: it depends on every one of them."""
        low, high = float(values.min()), float(values.max())
        if low == high:
            margin = max(0.5, 1e-6 * abs(low))
            return cls(low - margin, high + margin)
        return cls(low, high)
