"""A split for data that come without one."""

from __future__ import annotations

import numpy as np

from inosgd._arrays import IntArray

HELD_OUT = 5
"""One example in so many is held out."""

_SEED = 0


def split_rows(targets: IntArray) -> tuple[IntArray, IntArray]:
    """Rows to train on and rows held out: a fifth of each class, rounded up, always the same ones.

    The paper speaks of default splits, which cardiotocograms and surnames do not have: this one is ours.
    """
    generator = np.random.default_rng(_SEED)
    held_out = np.zeros(len(targets), dtype=np.bool_)
    for label in np.unique(targets):
        rows = generator.permutation(np.flatnonzero(targets == label))
        held_out[rows[: -(-len(rows) // HELD_OUT)]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
