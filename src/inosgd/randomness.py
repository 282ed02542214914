"""Randomness: sources of random bits, and the exact draws that sampling and noise are made of.

A source is always an argument and a seed never has a default. `SeededSource` repeats itself, for tests and
experiments: whoever knows the seed can remove the noise. `SecureSource` takes its key from the operating
system and nobody can predict it, for models that leave the house.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray

WordArray = npt.NDArray[np.uint64]


class RandomSource(Protocol):
    """Independent uniform 64-bit words."""

    @property
    def description(self) -> str:
        """Where the words come from, for the record of a run; never the seed of a secure source."""

    def words(self, count: int) -> WordArray:
        """The next ``count`` words."""

    def stream(self, label: str) -> RandomSource:
        """A source of its own for one purpose, so that drawing more for one never shifts another."""


class SeededSource:
    """Words from the Philox counter generator, keyed by a seed and a path of stream labels.

    Guarantee: none. The same seed gives the same words; use it where repeating a run matters more than
    protecting the data, and never to release a model.
    """

    def __init__(self, seed: int, *, path: str = "") -> None:
        _validate.whole(0, seed=seed)
        self._seed, self._path = int(seed), path
        digest = hashlib.sha256(f"{self._seed}{path}".encode()).digest()
        self._generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    @property
    def description(self) -> str:
        """The seed, since a seeded source keeps nothing secret."""
        return f"seeded ({self._seed}): repeatable, not private against whoever knows the seed"

    def words(self, count: int) -> WordArray:
        """The next ``count`` words of this stream."""
        return self._generator.random_raw(count)

    def stream(self, label: str) -> SeededSource:
        """The stream of this seed called ``label``: the same for the same seed, from its beginning."""
        return SeededSource(self._seed, path=f"{self._path}/{label}")


class SecureSource:
    """Words from a ChaCha20 keystream whose key comes from the operating system's entropy.

    Guarantee: to whoever does not read this process's memory, the words cannot be told from uniform ones, if
    ChaCha20 is a secure stream cipher. A forked process takes a key of its own, so no two processes ever
    share noise; keys are replaced long before ChaCha20's block counter ends.
    """

    BYTES_PER_KEY = 1 << 36

    def __init__(self) -> None:
        self._renew()

    @property
    def description(self) -> str:
        """Names the cipher only."""
        return "secure: ChaCha20 keystream, keyed by the operating system"

    def words(self, count: int) -> WordArray:
        """The next ``count`` words of the keystream."""
        size = 8 * count
        if self._process != os.getpid() or size > self._left:
            self._renew()
        self._left -= size
        return np.frombuffer(self._keystream.update(bytes(size)), dtype="<u8").astype(np.uint64, copy=False)

    def stream(self, label: str) -> SecureSource:
        """A source with a key of its own; ``label`` only documents the purpose."""
        return SecureSource()

    def _renew(self) -> None:
        algorithm = ChaCha20(os.urandom(32), bytes(16))
        self._keystream: CipherContext = Cipher(algorithm, mode=None).encryptor()
        self._left = self.BYTES_PER_KEY
        self._process = os.getpid()


def uniforms(source: RandomSource, count: int) -> FloatArray:
    """Uniform numbers on the open interval (0, 1): the midpoints of 2^52 equal cells, each exact in float64."""
    return ((source.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def integers_below(source: RandomSource, bounds: IntArray) -> IntArray:
    """For every bound m an integer uniform on {0, ..., m - 1}, exactly.

    A word is taken modulo m; the few words at the top of the range that would favour small residues are
    drawn again.
    """
    divisors = bounds.astype(np.uint64)
    largest = np.uint64(2**64 - 1)
    excess = (largest % divisors + np.uint64(1)) % divisors
    words = np.array(source.words(len(bounds)))
    redraw = np.flatnonzero(words > largest - excess)
    while len(redraw):
        words[redraw] = source.words(len(redraw))
        redraw = redraw[words[redraw] > (largest - excess)[redraw]]
    return (words % divisors).astype(np.int64)
