"""Reproducible initial weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from inosgd import _validate


@contextmanager
def initialised_from(seed: int) -> Iterator[None]:
    """Inside, torch draws from ``seed``; afterwards its global generator stands where it stood.

    Models are built on the CPU, so only the CPU's generator is involved.
    """
    _validate.whole(0, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
