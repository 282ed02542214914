"""Odds: what a budget means to a person, as attempts at telling whether a record was used.

A party is given a model, and a record that was used with probability one half. It says "used" or "not used". By
guessing, 50 of 100 attempts succeed; the best test succeeds with probability (1 + V) / 2, where V is the distance in
total variation between the laws of everything that is published with the record and without it.

>>> best_of_100(1.0, 1e-5)
74
>>> best_of_100(1.0, 1e-5, divergence=0.02)
56
"""

from __future__ import annotations

import math

from inosgd import _validate

ATTEMPTS = 100

_ROUNDED_UP = 1e-9


def best_of_100(epsilon: float, delta: float, divergence: float | None = None) -> int:
    """At most so many of 100 attempts succeed on average, whatever the party knows about all other records.

    Guarantee:
        An upper bound, rounded up. (ε, δ)-differential privacy implies V <= (e^ε - 1 + 2δ) / (e^ε + 1). A Rényi
        divergence D of an order above 1 is at least the Kullback-Leibler divergence, so that V <= √(D / 2) (Pinsker)
        and V <= √(1 - e^-D) (Bretagnolle and Huber). The smallest of the three is taken.

    Args:
        epsilon: What is allowed or spent.
        delta: At this delta.
        divergence: The Rényi divergence of the same, if it is known.
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.open_unit(delta=delta)
    distances = [(math.tanh(epsilon / 2) + delta * (1 - math.tanh(epsilon / 2)))]
    if divergence is not None:
        _validate.non_negative(divergence=divergence)
        distances += [math.sqrt(divergence / 2), math.sqrt(-math.expm1(-divergence))]
    best = (1 + min(*distances, 1.0)) / 2
    return min(ATTEMPTS, math.ceil(ATTEMPTS * best * (1 + _ROUNDED_UP)))
