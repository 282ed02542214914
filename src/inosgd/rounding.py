"""Rounding of sums: the room that is left for it, so that bounds proved for real numbers hold for floating-point ones.

A sum of gradients in float32 is rounded relative to the whole sum, while its sensitivity is one example's threshold: an
owner whose threshold is small against the batch is the one who is exposed. A sum of thresholds T comes with errors of
the order of u T, u = 2^-24 the unit roundoff. If two neighbouring batches are summed in the same order, most errors are
the same in both, and they come apart by about u T. But a library chooses its order by the shape of what it sums, which
one example changes, and errors of equal gradients all have one sign: then the two came apart by up to

    1 u T     chains by the compiled kernel, embeddings of words,
    30 u T    linear and recurrent layers, normalisation, convolutions,
    60 u T    layers on sequences, embeddings of positions, and convolutions of few pixels,

measured with equal gradients, on 1 to 4 threads, in batches of up to 1,024 examples with thresholds 300 times apart, in
whatever direction the example would have to point. (In the direction of the others, with periodic gradients too and in
batches of up to 16,384, it was less; in a batch of two, with 250 places each, it was 68 u T of these two, which is far
less than 64 of the T below.) This takes sums over few examples at once
(`inosgd.gradients.rules.forms.MOST_AT_ONCE`); over whole batches it was hundreds of u T.

Sums are therefore shrunk by the share

    s = 64 u T / c,    c the smallest threshold,

so that one example of owner n moves what is left by (1 - s) C_n + 64 u T <= C_n. T is a bound on a batch's sum of
thresholds that holds but with probability 1e-20 (Bernstein's inequality), and depends on the plan alone.

The factor 64 rests on measurement, not on proof: it is for sums of gradients, not for contributions that cancel within
an example, and it takes for granted that an example's own gradient is the same whatever else is in the batch. In
float64 the same share is below 1e-8.

A sum that P processes compute in parts (`inosgd.distributed`) is rounded P - 1 times more, in whatever order the parts
are added: each addition errs by at most u times its result, which is no longer than T, so two neighbouring sums come
apart by 2 (P - 1) u T at most. This is proved, and in float32 it is charged on top: s = (64 + 2 (P - 1)) u T / c. In
float64 it is below 1e-9 c for P T / c up to four million; clipping leaves 1e-5 c (`inosgd.clipping.MARGIN`), which
float64 does not use, and so the share is the same for any number of processes.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from inosgd._arrays import IntArray
from inosgd.errors import InvalidArgumentError
from inosgd.plan import Terms

ROUNDOFFS = 64.0
LARGEST_SHARE = 0.05
_LOG_FAILURE = math.log(1e20)


def leave_room(value: torch.Tensor, terms: Terms, sizes: IntArray) -> torch.Tensor:
    """``value``, a weighted sum of clipped gradients, shrunk so that its roundings fit into the thresholds; float64.

    Args:
        value: The sum, in the type in which it was accumulated.
        terms: Rates and thresholds of the step.
        sizes: How many examples each owner has.

    Raises:
        InvalidArgumentError: If more than a twentieth of the signal would go.
    """
    return value.double() * (1.0 - share_for_rounding(terms, sizes, value.dtype))


def share_for_rounding(terms: Terms, sizes: IntArray, dtype: torch.dtype, parts: int = 1) -> float:
    """By which share sums in ``dtype`` are shrunk; 0 where thresholds are infinite and nothing is bounded.

    ``parts`` is how many sums, each over a part of the batch, are added up in ``dtype``.
    """
    smallest, largest = float(terms.clipping_thresholds.min()), float(terms.clipping_thresholds.max())
    if math.isinf(largest):
        return 0.0
    additions = 0.0 if dtype == torch.float64 else 2.0 * (parts - 1)
    share = (ROUNDOFFS + additions) * torch.finfo(dtype).eps / 2 * largest_threshold_sum(terms, sizes) / smallest
    if not share <= LARGEST_SHARE:
        raise InvalidArgumentError(
            f"clipping_thresholds from {smallest:g} to {largest:g} at an expected batch size of "
            f"{terms.expected_batch_size:g}: roundings of sums in {dtype} could take {share:.1%} of the smallest, and "
            f"at most {LARGEST_SHARE:.0%} is left for them; train the model in float64, use ReferenceEngine, or plan "
            "with smaller batches or thresholds closer together"
        )
    return share


def largest_threshold_sum(terms: Terms, sizes: IntArray) -> float:
    """What a batch's thresholds add up to at most, but with probability 1e-20.

    Inclusions are independent, so with mean m, variance v and largest threshold c, Bernstein's inequality gives
    P(sum >= m + t) <= exp(-t^2 / (2 v + 2 c t / 3)).
    """
    rates, thresholds = terms.sampling_rates, terms.clipping_thresholds
    expected = rates * sizes * thresholds
    variance = float(np.dot(expected * (1 - rates), thresholds))
    linear = _LOG_FAILURE * float(thresholds.max()) / 3
    excess = linear + math.sqrt(linear**2 + 2 * _LOG_FAILURE * variance)
    return min(float(expected.sum()) + excess, float(np.dot(sizes, thresholds)))
