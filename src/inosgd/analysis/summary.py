"""Summaries over paired seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MeanSd:
    """A mean over seeds and its sample standard deviation (0 for a single seed)."""

    mean: float
    sd: float

    def to_json(self) -> dict[str, float]:
        """Plain numbers."""
        return {"mean": self.mean, "sd": self.sd}


def mean_sd(values: Sequence[float]) -> MeanSd:
    """The mean and sample standard deviation of ``values``.

    >>> mean_sd([1.0, 3.0])
    MeanSd(mean=2.0, sd=1.4142135623730951)
    """
    array = np.asarray(values, dtype=np.float64)
    return MeanSd(float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0)
