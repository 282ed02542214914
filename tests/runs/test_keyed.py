"""Keyed digests tell whether trainings are the same to whoever has the key, and nothing to whoever has not."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from inosgd import DP_SGD
from inosgd.augmentation import Augmentation
from inosgd.examples import DatasetStore, TensorStore
from inosgd.runs import digests
from inosgd.runs.digests import training_digests
from inosgd.runs.keyed import KEY_BYTES, keyed_digest, new_key
from tests import tiny

KEY = bytes(range(KEY_BYTES))


def examples_digest(examples, key=KEY) -> str:
    return training_digests(key, replace(tiny.trainer_for(tiny.PLAN), examples=examples))["examples"]


def test_digests_are_hmac_and_nothing_without_the_key():
    """RFC 4231, test case 2; and the control: a plain checksum is the same for everybody."""
    vector = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert keyed_digest(b"Jefe", b"what do ya want for nothing?") == vector
    assert len({new_key() for _ in range(9)}) == 9
    trainer = tiny.trainer_for(tiny.PLAN)
    one, other = (training_digests(new_key(), trainer) for _ in range(2))
    assert not set(one.values()) & set(other.values())
    assert training_digests(KEY, trainer) == training_digests(KEY, trainer)
    inputs, _ = tiny.examples(40)
    plain = hashlib.sha256(inputs.numpy().tobytes()).hexdigest()
    assert plain == hashlib.sha256(tiny.examples(40)[0].numpy().tobytes()).hexdigest()


def test_any_change_of_the_examples_shows():
    inputs, targets = tiny.examples(40)
    one_bit = inputs.clone()
    one_bit.view(torch.int32)[17, 3] ^= 1
    order = torch.arange(40)
    order[[3, 4]] = order[[4, 3]]
    variants = {
        "as it is": (inputs, targets),
        "one bit": (one_bit, targets),
        "another order": (inputs[order], targets[order]),
        "another label": (inputs, targets.index_fill(0, torch.tensor(5), 9)),
        "another type": (inputs, targets.int()),
        "another shape": (inputs.view(40, 3, 2), targets),
    }
    digests = {name: examples_digest(each) for name, each in variants.items()}
    assert len(set(digests.values())) == len(variants)
    assert digests["as it is"] == examples_digest(tiny.examples(40))


class Clip:
    """A clipping of a user's own, whose text has its address in memory."""


def test_a_method_of_ones_own_is_the_same_in_the_next_process():
    trainer = tiny.trainer_for(tiny.PLAN)
    ours = [replace(trainer, method=replace(trainer.method, clipping=Clip())) for _ in range(2)]
    assert repr(ours[0].method.clipping) != repr(ours[1].method.clipping)
    one, other = (training_digests(KEY, each) for each in ours)
    assert one == other


def test_owners_and_method_have_digests_of_their_own():
    trainer = tiny.trainer_for(tiny.PLAN)
    before = training_digests(KEY, trainer)
    after = training_digests(KEY, replace(trainer, method=DP_SGD))
    assert {name for name in before if before[name] != after[name]} == {"method"}
    assert training_digests(KEY, trainer, b"files")["examples"] == keyed_digest(KEY, b"files")


def test_a_training_without_copies_is_told_from_one_with_them():
    trainer = tiny.trainer_for(tiny.PLAN)
    plain, copied = (training_digests(KEY, each) for each in (trainer, replace(trainer, augmentation=Augmentation(2))))
    assert {name for name in plain if plain[name] != copied[name]} == {"units", "augmentation"}
    assert plain.keys() == copied.keys()  # what is not there is not compared


@pytest.mark.parametrize("rows", [1, 7, 40, 4096])
def test_rows_are_read_in_blocks(monkeypatch, rows):
    monkeypatch.setattr(digests, "ROWS_AT_ONCE", rows)
    taken = []

    class Watched(TensorStore):
        def take(self, indices):
            taken.extend(indices.tolist())
            return super().take(indices)

    examples_digest(Watched(tiny.examples(40)))
    assert taken == list(range(40))


class Augmented(Dataset):
    """Draws from torch's generator, as transforms do."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index):
        return torch.rand(6) + index, torch.tensor(index % 2), f"name {index}"


def test_a_data_set_that_draws_is_the_same_each_time_and_leaves_the_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, other = (examples_digest(DatasetStore(Augmented())) for _ in range(2))
    assert one == other
    assert torch.equal(torch.get_rng_state(), before)


def test_owners_are_compared_by_their_rows():
    trainer = tiny.trainer_for(tiny.PLAN)
    wide = trainer.owners.assignment.astype(np.int64)
    assert training_digests(KEY, trainer)["owners"] == keyed_digest(KEY, wide.astype("<i8").tobytes())
