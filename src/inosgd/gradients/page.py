"""A page: what one pass over a batch left, and the weighted sums of its gradients.

Guarantee:
    Norms are upper bounds. A weighted sum is computed in the type of the model only where `inosgd.rounding` bounds its
    error by the one that is allowed, and in float64 otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.gradients.allocator import new_doubles
from inosgd.gradients.engine import Measured
from inosgd.gradients.rules.chain import FoldedChain
from inosgd.gradients.rules.chain_kernel import KernelGradients
from inosgd.gradients.rules.forms import Dense, Form
from inosgd.gradients.rules.rule import Gradients
from inosgd.gradients.rules.sums import held_sums
from inosgd.gradients.seen import Folds
from inosgd.rounding import ROUNDOFFS

_SMALL_ERROR = 2.0**-16
"""From which error of a sum on what underflows is nothing beside it."""


@dataclass(frozen=True, eq=False, repr=False)
class Page:
    """What one pass left: losses, bounds on gradients, and the gradients themselves in compact forms.

    Attributes:
        parameters: The trained parameters, in their order.
        losses: One per example.
        forms: The gradients.
        count: How many examples there are; what is behind them repeats the last, so that batches have few sizes.
        norms: At least every example's gradient norm, and at least a `CANCELLATION`-th of its magnitude.
        magnitudes: At least the sum of the norms of all that an example adds to a sum; see `Bounds`.
        folds: See `Recorder`.
        calls: See `Recorder`.
        functions: See `Seen`.
        constant: See `Recorder`.
    """

    parameters: tuple[nn.Parameter, ...]
    losses: torch.Tensor
    forms: Gradients
    norms: FloatArray
    magnitudes: FloatArray
    count: int
    folds: Folds = ()
    calls: Set[tuple[str, int]] = frozenset()
    functions: bool = False
    constant: Set[str] = frozenset()

    def measure(self) -> Measured:
        """See `BatchGradients.measure`."""
        return Measured(self.losses[: self.count].double().cpu().numpy(), self.norms[: self.count])

    @torch.no_grad()
    def weighted_sum(self, coefficients: FloatArray, error: float = 0.0) -> torch.Tensor:
        """See `BatchGradients.weighted_sum`. Next to gradients that are not finite, 0 must not be multiplied.

        What products lose below the smallest normal number is 2^-126 times numbers that are no larger than 2^64, for at
        most 2^20 places and 2^16 rows of a weight in all 2^20 2^8 2^-62 = 2^-34: nothing beside an ``error`` of 2^-16
        or more. Where it is smaller, coefficients are scaled by a power of two to where it is about 1.
        """
        _validate.same_length(coefficients=coefficients, losses=self.losses[: self.count])
        if len(self.losses) > self.count:
            coefficients = np.append(coefficients, np.zeros(len(self.losses) - self.count))
        single = self._single_will_do(coefficients, error)
        unit = 2.0 ** np.frexp(error)[1] if single and 0 < error < _SMALL_ERROR else 1.0
        by_kernel, places = self._all_by_kernel() if single else (None, 1)
        scales = torch.from_numpy(np.repeat(coefficients / unit, places)).to(self.losses.device)
        if by_kernel is not None:
            total = by_kernel.flat_sum(scales)
            return total if unit == 1.0 else total * unit
        forms = list(self.forms.values())
        if not np.isfinite(self.norms).all():
            rows = torch.from_numpy(np.flatnonzero(coefficients)).to(scales.device)
            forms, scales = [form.select(rows) for form in forms], scales[rows]
        total = self._flat(forms, scales, single)
        return total if unit == 1.0 else total.mul_(unit)

    def _single_will_do(self, coefficients: FloatArray, error: float) -> bool:
        """Whether a sum in the type of the model is in error by at most ``error``; see `inosgd.rounding`."""
        dtype = self.parameters[0].dtype
        if dtype == torch.float64:
            return True
        magnitude = float(np.dot(np.abs(coefficients), np.where(coefficients == 0, 0.0, self.magnitudes)))
        return 1e-12 < error < 1e12 and ROUNDOFFS * torch.finfo(dtype).eps / 2 * magnitude <= 0.99 * error

    def _flat(self, forms: Sequence[Form], coefficients: torch.Tensor, single: bool) -> torch.Tensor:
        sizes = [parameter.numel() for parameter in self.parameters]
        total = new_doubles(sum(sizes), self.losses)
        pairs = zip(self.parameters, total.split_with_sizes(sizes), strict=True)
        places = {id(parameter): part.view(parameter.shape) for parameter, part in pairs}
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        for parameters, form in zip(self.forms, forms, strict=True):
            targets = [places.pop(id(parameter)) for parameter in parameters if id(parameter) in places]
            if type(form) is Dense and len(targets) == len(parameters):
                held += zip(form.gradients, targets, strict=True)
                continue
            if hasattr(form, "sum_into") and len(targets) == len(parameters):
                form.sum_into(targets, coefficients, single=single)
                continue
            parts = form.weighted_sum(coefficients, single=single)
            wanted = [part for parameter, part in zip(parameters, parts, strict=True) if parameter.requires_grad]
            for target, part in zip(targets, wanted, strict=True):
                target.copy_(part)
        held_sums(held, coefficients, single=single)
        for nothing in places.values():
            nothing.zero_()
        return total

    def _all_by_kernel(self) -> tuple[KernelGradients | None, int]:
        """The gradients of all the parameters, in their order, if the kernel has them; and the rows of an example."""
        for parameters, form in self.forms.items():
            rows, places = (form.rows, form.places) if isinstance(form, FoldedChain) else (form, 1)
            if isinstance(rows, KernelGradients) and [*map(id, parameters)] == [*map(id, self.parameters)]:
                return rows, places
        return None, 1
