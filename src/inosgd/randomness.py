"""Randomness: sources of random bits, and the exact draws that sampling and noise are made of.

A source is always an argument and a seed never has a default. `SeededSource` repeats itself, for tests and
experiments: any party that knows the seed can remove the noise. `SecureSource` takes its key from the operating
system and cannot be predicted; it is for models that are published.

Both can be saved and restored: `state` is JSON, and the source made from it by `source_from_state` goes on with the
same words. The state of a secure source is a secret of the same kind as the data: a party that reads it knows the noise
of all later steps. It says nothing about earlier words (see `SecureSource`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.errors import InvalidArgumentError

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
    protecting the data, and never to publish a model.
    """

    def __init__(self, seed: int, *, path: str = "") -> None:
        _validate.whole(0, seed=seed)
        self._seed, self._path = int(seed), path
        digest = hashlib.sha256(f"{self._seed}{path}".encode()).digest()
        self._generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    @property
    def description(self) -> str:
        """The seed, since a seeded source keeps nothing secret."""
        return f"seeded ({self._seed}): repeatable, not private against a party that knows the seed"

    def words(self, count: int) -> WordArray:
        """The next ``count`` words of this stream."""
        return self._generator.random_raw(count)

    def stream(self, label: str) -> SeededSource:
        """The stream of this seed called ``label``: the same for the same seed, from its beginning."""
        return SeededSource(self._seed, path=f"{self._path}/{label}")

    def state(self) -> dict[str, Any]:
        """Seed, path, the generator's counter and the words it has ready."""
        inner = self._generator.state
        return {
            "kind": "seeded",
            "seed": self._seed,
            "path": self._path,
            "counter": inner["state"]["counter"].tolist(),
            "buffer": inner["buffer"].tolist(),
            "buffer_position": int(inner["buffer_pos"]),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SeededSource:
        """The source whose `state` this is."""
        source = cls(state["seed"], path=state["path"])
        inner = source._generator.state
        inner["state"]["counter"] = np.array(state["counter"], dtype=np.uint64)
        inner["buffer"] = np.array(state["buffer"], dtype=np.uint64)
        inner["buffer_pos"] = state["buffer_position"]
        source._generator.state = inner
        return source


class SecureSource:
    """Words from ChaCha20 keystreams; the first key comes from the operating system's entropy.

    Every call takes its words from the keystream of the current key, of which the first 32 bytes are the next key,
    and forgets the current one.

    Guarantee: if ChaCha20 is a secure stream cipher, then a party that does not read this process's memory cannot
    tell the words from uniform ones; one that does read it, or a saved `state`, cannot tell the words drawn *before*:
    a later key does not lead back to an earlier one. A forked process takes a key of its own, so no two processes
    ever share noise. Copies and pickles, which would, are refused. Two sources restored from one state do share it:
    restore a state once.
    """

    MOST_WORDS = 1 << 32
    """In one call: an eighth of what one key's block counter allows."""

    def __init__(self) -> None:
        self._key, self._process = os.urandom(_KEY_BYTES), os.getpid()

    @property
    def description(self) -> str:
        """Names the cipher only."""
        return "secure: ChaCha20 keystream, keyed by the operating system"

    def words(self, count: int) -> WordArray:
        """The next ``count`` words; the key that they came from is gone afterwards."""
        if not count <= self.MOST_WORDS:
            raise _validate.fail("count", count, f"draw at most {self.MOST_WORDS} words at once")
        keystream = Cipher(ChaCha20(self._current_key(), bytes(16)), mode=None).encryptor()
        self._key = keystream.update(bytes(_KEY_BYTES))
        return np.frombuffer(keystream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)

    def stream(self, label: str) -> SecureSource:
        """A source with a key of its own; ``label`` only documents the purpose."""
        return SecureSource()

    def state(self) -> dict[str, Any]:
        """The current key. Secret: keep it in a file that only its user can read, and no longer than needed."""
        return {"kind": "secure", "key": self._current_key().hex()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SecureSource:
        """The source whose `state` this is; where the key has been erased, a source with a new key."""
        source = cls()
        if state["key"] is not None:
            source._key = bytes.fromhex(state["key"])
            if len(source._key) != _KEY_BYTES:
                raise InvalidArgumentError(f"key: it has {len(source._key)} bytes; a saved one has {_KEY_BYTES}")
        return source

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """`copy`, `deepcopy` and `pickle` come here."""
        raise InvalidArgumentError(
            f"source: a {type(self).__name__} is not copied or pickled, nor a training state that has one, because "
            "both would draw the same noise; give each training a SecureSource() of its own, and keep a training in a "
            "run folder"
        )

    def _current_key(self) -> bytes:
        if self._process != os.getpid():
            self._key, self._process = os.urandom(_KEY_BYTES), os.getpid()
        return self._key


_KEY_BYTES = 32


class AgreedSource(SecureSource):
    """A secure source that several processes make from one key: streams of one label hold the same words in all.

    Guarantee: that of `SecureSource`, if the key is uniform and only these processes know it. They must use the words
    as one: what all of them draw alike counts once.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__()
        if len(key) != _KEY_BYTES:
            raise InvalidArgumentError(f"key: it has {len(key)} bytes; give {_KEY_BYTES}")
        self._root = self._key = bytes(key)

    @property
    def description(self) -> str:
        """Names the cipher and who made the key."""
        return "secure: ChaCha20 keystream, keyed by all processes together"

    def stream(self, label: str) -> SecureSource:
        """The stream of this key called ``label``, from its beginning."""
        digest = hashlib.sha256(b"inosgd stream" + self._root + label.encode())
        return SecureSource.from_state({"key": digest.hexdigest()})


def source_from_state(state: Mapping[str, Any]) -> RandomSource:
    """The source whose ``state()`` this is: it goes on with the same words."""
    kinds = {"seeded": SeededSource, "secure": SecureSource}
    kind = state.get("kind")
    if kind not in kinds:
        raise _validate.fail("kind", kind, f"this version restores sources of kind {', '.join(kinds)}")
    return kinds[str(kind)].from_state(state)  # type: ignore[attr-defined, no-any-return]


def without_key(state: Mapping[str, Any]) -> dict[str, Any]:
    """``state`` with a secure source's key erased; the state of a seeded source, which hides nothing, as it is."""
    return {**state, "key": None} if state.get("kind") == "secure" else dict(state)


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


def mixed_words(numbers: npt.NDArray[Any], word: np.uint64 | WordArray) -> WordArray:
    """A pseudo-random word for each number: the SplitMix64 finaliser of the number and one fresh word."""
    key = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + word
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
