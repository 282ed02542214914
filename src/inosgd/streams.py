"""Random streams of a training: one for each purpose, so that drawing more for one never shifts another.

Methods that draw different numbers of one kind still share the others: with the same source, DP-SGD and INO-SGD see the
same batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from inosgd.errors import CheckpointError
from inosgd.randomness import AgreedSource, RandomSource, SecureSource, SeededSource, source_from_state

NAMES = ("sampling", "order", "noise", "masks", "rows")


@dataclass(frozen=True)
class Streams:
    """The sources that the steps of one training draw from.

    Attributes:
        sampling: Which examples are in a batch.
        order: Orders that are drawn at random.
        noise: What is added to the sum.
        masks: What the model draws for itself, such as dropout masks.
        rows: Which rows of a unit are in a step, and how they are augmented (`inosgd.units`).
    """

    sampling: RandomSource
    order: RandomSource
    noise: RandomSource
    masks: RandomSource
    rows: RandomSource

    @classmethod
    def of(cls, source: RandomSource) -> Self:
        """The streams of ``source``, each from its beginning."""
        return cls(*(source.stream(name) for name in NAMES))

    @property
    def savable(self) -> bool:
        """Whether every source has a state that can be saved."""
        return all(isinstance(getattr(self, name), SecureSource | SeededSource) for name in NAMES)

    def state(self) -> dict[str, Any]:
        """The states of the sources by name, as JSON; secret if a source is.

        Raises:
            CheckpointError: If a source cannot be saved.
        """
        states = {}
        for name in NAMES:
            source = getattr(self, name)
            if not isinstance(source, SecureSource | SeededSource):
                raise CheckpointError(
                    f"stream {name!r}: a {type(source).__name__} cannot be saved; use SecureSource or SeededSource"
                )
            states[name] = source.state()
        return states

    @classmethod
    def from_state(cls, states: Mapping[str, Any]) -> Self:
        """The streams whose `state` this is: they go on with the same words."""
        return cls(*(source_from_state(states[name]) for name in NAMES))

    def fingerprint(self) -> str | None:
        """A digest of the states of all streams; None if one of them cannot be saved.

        Two steps with one fingerprint draw the same sample, order, masks and noise. It does not show the states: the
        key of a secure source is as long as the digest.
        """
        if not self.savable:
            return None
        return hashlib.sha256(json.dumps(list(self.state().values())).encode()).hexdigest()

    def renewed(self, label: str, source: RandomSource | None) -> Self:
        """New streams, which have no words in common with these.

        Where all processes have agreed on a ``source``, they come from it, so that no process chooses their keys alone.
        """
        if isinstance(source, AgreedSource):
            return type(self)(*(source.stream(f"{name} {label}") for name in NAMES))
        return type(self)(*(getattr(self, name).stream(label) for name in NAMES))
