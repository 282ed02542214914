"""Digests of a training: whether owners, examples and method are those that a run began with."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils import _pytree as pytree

from inosgd.examples import ExampleStore
from inosgd.masks import torch_seeded_by
from inosgd.randomness import SeededSource
from inosgd.runs.keyed import keyed_digest
from inosgd.training import Trainer, units_digest

ROWS_AT_ONCE = 4096


def training_digests(key: bytes, trainer: Trainer, data: bytes | None = None) -> dict[str, str]:
    """What a training is about: owners of examples, examples, method and updates, each as a digest by name.

    The learning rate itself is in every checkpoint, with the optimizer.

    Args:
        key: Of the digests.
        trainer: Plan and engine are not looked at: the ledger knows the plan, and engines differ in rounding only.
        data: What stands for the examples, such as checksums of their files; without it, all of them are read.
    """
    shares = None if trainer.shares is None else trainer.shares.to_json()
    return {
        "owners": keyed_digest(key, trainer.owners.assignment.astype("<i8").tobytes()),
        "examples": _of_examples(key, trainer.store) if data is None else keyed_digest(key, data),
        "method": keyed_digest(key, json.dumps(trainer.method.to_json()).encode()),
        "shares": keyed_digest(key, json.dumps(shares).encode()),
        "learning_rate_unit": keyed_digest(key, trainer.learning_rate_unit.encode()),
        "units": keyed_digest(key, str(units_digest(trainer.units)).encode()),
        "augmentation": keyed_digest(key, str(trainer.augmentation).encode()),
    }


def _of_examples(key: bytes, store: ExampleStore) -> str:
    """Of all rows in their order; a data set that draws from torch's generator draws the same each time."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    with torch_seeded_by(SeededSource(0)):
        for start in range(0, len(store), ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, len(store)))
            for part in _parts(store.take(rows)):
                digest.update(part)
    return digest.hexdigest()


def _parts(tree: object) -> Iterator[bytes]:
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            yield f"{tuple(leaf.shape)} {leaf.dtype} ".encode()
            yield leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        else:
            yield repr(leaf).encode()
