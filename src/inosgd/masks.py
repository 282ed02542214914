"""Masks: the random numbers that a model draws for itself, such as those of dropout, from the run's own stream.

Dropout masks go by position in the batch, so one more example shifts the masks of those behind it. That leaves the law
of the sum as it was only if masks are as good as independent of each other and cannot be predicted: they must not come
from a seed that others know, or could try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from inosgd.errors import InosgdError
from inosgd.randomness import AgreedSource, RandomSource, WordArray

_TWISTER_WORDS = 624
"""The state of torch's generator on the processor, a Mersenne Twister, in words of 32 bits."""

_KEY, _OTHERS = 4, 2
"""Words of 64 bits: a key for the other ranks; and what CUDA and ``torch.initial_seed`` take."""


@contextmanager
def torch_seeded_by(source: RandomSource, rank: int = 0) -> Iterator[Callable[[], bool]]:
    """Inside, torch's global generators follow ``source``; afterwards they stand where they stood.

    What it yields says whether anything was drawn from them so far.

    Guarantee:
        On the processor the whole state of torch's generator, 19,937 bits, is made of words of ``source``. So the first
        623 words of 32 bits that the model draws are uniform and independent if those of ``source`` are; so are any 623
        in a row. What torch's functions make of these words is torch's own: on Intel processors its Bernoulli numbers
        come from MKL, so that there each call of dropout is seeded with one of them. On CUDA, Philox gets a key of 64
        bits and a place in its sequence of 62, on other accelerators a seed of 64: none of these has been tested.

    Processes of one training draw the same words, and each ``rank`` but the first makes others of them, by ChaCha20, so
    that their masks are not the same. Hence a model with dropout is trained with other masks on another number of
    processes.
    """
    with torch.random.fork_rng(devices=None if _accelerator() else []):
        filled = _fill_generators(_words(source, rank))
        yield lambda: not all(map(torch.equal, filled, _generators()))


def _words(source: RandomSource, rank: int) -> WordArray:
    """What the generators of a rank are filled with; every rank draws the same number of words."""
    drawn = source.words(_KEY + _OTHERS + _TWISTER_WORDS // 2)
    if rank == 0:
        return drawn[_KEY:]
    return AgreedSource(drawn[:_KEY].tobytes()).stream(f"masks of rank {rank}").words(len(drawn) - _KEY)


def _fill_generators(words: WordArray) -> list[torch.Tensor]:
    """Fill torch's global generators, and return where they then stand, those of CUDA after that of the processor."""
    _check_layout("cpu")
    filled = [_twister_state(words[0], words[2:].view(np.uint32))]
    accelerator = _accelerator()
    if accelerator == "cuda":
        _check_layout("cuda")
        filled += [_philox_state(words[:2])] * torch.cuda.device_count()
        torch.cuda.set_rng_state_all(filled[1:])
    elif accelerator is not None:
        torch.manual_seed(int(words[0]))
    torch.set_rng_state(filled[0])
    return filled


def _generators() -> list[torch.Tensor]:
    """Where they stand now."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if _accelerator() == "cuda" else ())]


def _accelerator() -> str | None:
    """The type of torch's accelerator, if there is one; CUDA only once it has been used."""
    device = torch.accelerator.current_accelerator()
    if device is None or (device.type == "cuda" and not torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return None
    return device.type


def _twister_state(seed: np.uint64, words: npt.NDArray[np.uint32]) -> torch.Tensor:
    """The bytes of a generator with these words that has drawn nothing yet, as torch lays them out.

    In words of 64 bits: the seed; two halves, how many words are left (1: all are made anew first) and whether it has
    been seeded; the next word's place; the 624 words; and five about normal numbers kept from earlier draws.
    """
    state = np.zeros(3 + _TWISTER_WORDS + 5, dtype=np.uint64)
    state[0], state[1], state[3 : 3 + _TWISTER_WORDS] = seed, 1 << 32 | 1, words
    return torch.from_numpy(state.view(np.uint8))


def _philox_state(words: WordArray) -> torch.Tensor:
    """The bytes of a CUDA generator: its key, and its place, a multiple of 4."""
    return torch.from_numpy((words & np.array([2**64 - 1, 2**64 - 4], dtype=np.uint64)).view(np.uint8))


@cache
def _check_layout(device: str) -> None:
    """Raise unless torch lays a generator out as assumed: one that torch has seeded must have the expected bytes."""
    seed = np.uint64(5489)
    known = (
        _twister_state(seed, _seeded_words(5489))
        if device == "cpu"
        else _philox_state(np.array([seed, 0], dtype=np.uint64))
    )
    if not torch.equal(torch.Generator(device).manual_seed(int(seed)).get_state(), known):
        raise InosgdError(
            f"torch {torch.__version__} keeps the state of its generator on {device!r} in a way that this version of "
            "inosgd does not know, so that dropout masks cannot be drawn from the run's own stream; install the "
            "version of torch that constraints.txt names"
        )


def _seeded_words(seed: int) -> npt.NDArray[np.uint32]:
    """The words of the Mersenne Twister MT19937 after seeding, by its authors' recurrence."""
    words = [seed]
    for place in range(1, _TWISTER_WORDS):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + place) % 2**32)
    return np.array(words, dtype=np.uint32)
