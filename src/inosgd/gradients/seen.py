"""What was seen in batches that were checked, and the refusal of what none of them had.

Values are compared with another computation in few batches. In every other one, the ways in which parameters are used
are compared with those in which the checked batches used them, and shapes with those of all batches before.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import torch
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.coverage import uncovered
from inosgd.gradients.engine import Examples, tensors_of
from inosgd.gradients.rules.recorder import Recorder

Folds = tuple[tuple[str, int], ...]
"""See `Recorder.folds`."""


@dataclass
class Seen:
    """What batches had whose values were checked, or had too few finite losses to tell, and others may have.

    Attributes:
        folds: Which outputs had another number of rows than one per example, where values could be checked.
        calls: See `Recorder`.
        functions: Whether parameters were used outside of layers with rules.
        constant: See `Recorder`.
        quiet: Which of the task's modules nothing is watched in.
        anything: Whether batches may have anything else too, because their numbers are used for nothing.
        shapes: For the shapes of examples, those that they have in recorded outputs; see `Recorder`.
    """

    folds: set[Folds] = field(default_factory=set)
    calls: set[tuple[str, int]] = field(default_factory=set)
    functions: bool = False
    constant: set[str] = field(default_factory=set)
    quiet: frozenset[int] = frozenset()
    anything: bool = False
    shapes: dict[tuple[torch.Size, ...], dict[str, set[tuple[int, ...]]]] = field(default_factory=dict)

    @property
    def turned(self) -> Set[str] | None:
        """See `Recorder`."""
        return {path for folds in self.folds for path, places in folds if places < 0} if self.folds else None


class UncheckedError(InvalidArgumentError):
    """Parameters are used in a way in which no batch used them that was checked."""


class RaggedError(InvalidArgumentError):
    """The shapes inside of a model depend on what examples hold."""


def check_uses(seen: Seen, losses: torch.Tensor, recorder: Recorder, parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse uses of parameters that are not recorded, and numbers of rows that no batch had that was checked.

    All rows of a batch of one are that example's. Rows that were picked from several have the same shapes, and nothing
    that tells whose they are.
    """
    name = uncovered(losses, recorder.records, parameters)
    if name is not None:
        raise UncheckedError(
            f"parameter {name!r}: it is used past what is recorded of it, outside a call of its module, unlike in "
            "batches that were checked; use it in the same way in every batch, or use ReferenceEngine"
        )
    if recorder.count == 1:
        return
    folds = tuple(recorder.folds)
    if (folds and folds not in seen.folds) or not recorder.calls <= seen.calls:
        known = {fold for folds in seen.folds for fold in folds} | seen.calls
        new = sorted({path for path, _ in (recorder.calls | set(folds)) - known or folds})
        raise UncheckedError(
            f"modules {new}: rows for {recorder.count} examples that they had in no batch that was checked; let "
            "dimension 0 count the examples in every batch, or use ReferenceEngine"
        )


def check_shapes(seen: Seen, examples: Examples, recorder: Recorder) -> None:
    """Refuse shapes that an example has in this batch and had in no other, of examples of the same shape.

    Kernels, and the formulas of norms, go by shapes: where a batch is as long as its longest example wants, that one
    decides how all others are rounded. An example that passes alone has shapes of its own.
    """
    if recorder.count == 1:
        return
    known = seen.shapes.setdefault(tuple([leaf.shape[1:] for leaf in tensors_of(examples)]), {})
    for where, shapes in recorder.shapes.items():
        if not shapes <= known.setdefault(where, shapes):
            raise RaggedError(
                f"module {where!r}: its outputs have another shape per example than in batches before, for examples of "
                "the same shape: if the longest example decides how long all are inside of the model, it decides how "
                "they are rounded too; use a constant length (no trimming, pad_packed_sequence with total_length), or "
                "ReferenceEngine"
            )
