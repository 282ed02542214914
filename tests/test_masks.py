"""Masks: torch's generators hold words of the run's own stream, all of them, and are put back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from inosgd import masks
from inosgd.errors import InosgdError
from inosgd.masks import torch_seeded_by
from inosgd.randomness import SecureSource, SeededSource


def twister() -> np.ndarray:
    """The words that torch's generator on the processor holds."""
    return torch.get_rng_state().numpy().view(np.uint64)[3:627]


def come_of_a_seed(words: np.ndarray) -> bool:
    """Whether all words follow from the first, as after ``torch.manual_seed``, which has 2^32 outcomes."""
    return bool(np.array_equal(words, masks._seeded_words(int(words[0]))))


@pytest.mark.parametrize("source", [SecureSource(), SeededSource(1)])
@pytest.mark.parametrize("rank", [0, 1])
def test_masks_are_not_one_of_few(source, rank):
    torch.manual_seed(3)
    assert come_of_a_seed(twister()), "control"
    with torch_seeded_by(source, rank):
        assert not come_of_a_seed(twister())
        assert len(set(twister().tolist())) > 620


def test_every_word_is_the_streams_own():
    drawn = SeededSource(1).words(4 + 2 + 312)
    with torch_seeded_by(SeededSource(1)):
        np.testing.assert_array_equal(twister(), drawn[6:].view(np.uint32))
        assert torch.initial_seed() == drawn[4], "what some models seed others by"


def test_every_word_matters():
    """Each of them changes what is drawn, so that none is overwritten or left out."""
    words = SeededSource(1).words(312).view(np.uint32)
    drawn = set()
    for place in range(0, 624, 13):
        changed = words.copy()
        changed[place] ^= 1 << 31
        generator = torch.Generator()
        generator.set_state(masks._twister_state(np.uint64(0), changed))
        drawn.add(torch.randint(2**31, (1248,), generator=generator).numpy().tobytes())
    assert len(drawn) == len(range(0, 624, 13))


def test_ranks_draw_as_many_words_and_share_no_mask():
    sources, drawn = [SeededSource(1) for _ in range(4)], []
    for rank, source in enumerate(sources):
        with torch_seeded_by(source, rank):
            drawn.append(F.dropout(torch.ones(64)).numpy().tobytes())
    assert len(set(drawn)) == 4
    assert len({str(source.state()) for source in sources}) == 1


def test_steps_share_no_mask_and_repeat_with_their_source():
    def two_steps() -> list[list[float]]:
        source, found = SeededSource(1), []
        for _ in range(2):
            with torch_seeded_by(source):
                found.append(torch.rand(5).tolist())
        return found

    first, second = two_steps()
    assert first != second
    assert two_steps() == [first, second]


@pytest.mark.parametrize("error", [False, True])
def test_generators_are_put_back(error):
    before = torch.get_rng_state()
    try:
        with torch_seeded_by(SeededSource(1)):
            torch.randn(3)
            if error:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_says_whether_anything_was_drawn():
    with torch_seeded_by(SeededSource(1)) as drew:
        assert not drew()
        torch.randn(1)
        assert drew()


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_layout_is_torchs(seed):
    generator = torch.Generator().manual_seed(seed)
    ours = masks._twister_state(np.uint64(seed), masks._seeded_words(seed))
    assert torch.equal(generator.get_state(), ours)
    again = torch.Generator()
    again.set_state(ours)
    assert torch.equal(torch.randn(700, generator=generator), torch.randn(700, generator=again))


def test_another_layout_is_refused(monkeypatch):
    monkeypatch.setattr(masks, "_twister_state", lambda seed, words: torch.zeros(5056, dtype=torch.uint8))
    masks._check_layout.cache_clear()
    before = torch.get_rng_state()
    with pytest.raises(InosgdError, match="generator on 'cpu' in a way"), torch_seeded_by(SeededSource(1)):
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_philox_takes_a_key_and_a_place():
    state = masks._philox_state(np.array([2**64 - 1, 2**64 - 1], dtype=np.uint64)).numpy().view(np.uint64)
    assert state.tolist() == [2**64 - 1, 2**64 - 4]
