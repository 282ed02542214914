"""The condition of Thm. 3.1, measured while a model is trained.

For owners 1 and 2 and a step t the theorem (App. C.1.2) looks at

    1 + cos(angle_t) (q_2 |D_2| C_2) / (q_1 |D_1| C_1),

where angle_t is the angle between the two owners' full gradients: those of their whole losses, *before* clipping. Above
a problem-specific varsigma > 0 the expected losses of both fall for a small enough learning rate; below 0 there are
tasks on which owner 1's rises, which is the minority initial drop (`inosgd.analysis.initial_drop`).

How the paper was read:

- The angle is between full, unclipped gradients, as in the formal theorem and its proof. Sec. 2.2, on data imbalance,
  takes the summed gradients of a batch. Whether a loss is a sum or a mean over examples does not change an angle.
- The condition is about owner 1. The losses of *both* fall if it also holds with the two exchanged ("by symmetry"): it
  is a statement per ordered pair.
- varsigma is not computed. By the proof it is at least xi_1 E[min(1 / C_1, 1 / |g|)], with xi_1 the largest distance of
  a gradient g of owner 1 from their mean. That exceeds 1 once a single gradient is farther from the mean than typical
  ones are long, and then owners must *agree* (cos > 0) for the sufficient condition to hold. (The proof also loses the
  factor |gradient_2| / |gradient_1| before varsigma_2.)

Instead of varsigma there is the quantity that it bounds, for each owner n and against all owners m together:

    descent_n = < u_n, sum_m q_m |D_m| c_m > / (q_n |D_n| C_n),    u_n = the direction of n's full gradient,
                                                                   c_m = the mean of m's clipped gradients.

The expected change of owner n's mean loss in a step of IDP-SGD is, up to terms of second order,
-(learning rate / b) |gradient_n| q_n |D_n| C_n descent_n: for a small enough learning rate the loss falls exactly if
descent_n > 0. With two owners, and gradients that are longer than their thresholds and alike within each owner,
descent_1 is the theorem's left side. Both leave out the importance weights of INO-SGD, which lower the part of owners
with low losses.

Guarantee: none. On held-out examples nothing about the training data is shown but what the published model shows. On
the training data everything here is an exact function of them that no budget pays for: it is measured only if asked
for by ``on_training_data_unaccounted=True``, is marked as such, and must not be published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from inosgd import _validate
from inosgd._arrays import ArrayValue, FloatArray, IntArray, frozen_floats
from inosgd.errors import InvalidArgumentError
from inosgd.examples import as_store
from inosgd.gradients import Examples, trainable_parameters
from inosgd.modes import evaluating
from inosgd.plan import Terms
from inosgd.training import Callback, Trainer, TrainingState, every

MOST_OWNERS = 200
"""More owners than this must be chosen by name: one gradient is kept for each."""

EXAMPLES_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Examples that are not trained on, and whose kind each is: a row of the owner table."""

    examples: Examples
    groups: IntArray

    def __post_init__(self) -> None:
        _validate.same_length(examples=as_store(self.examples), groups=self.groups)


@dataclass(frozen=True)
class PairCondition:
    """Thm. 3.1 at one step, for the loss of ``owner`` against the pull of ``other``."""

    step: int
    owner: str
    other: str
    cosine: float
    signal_ratio: float
    unaccounted: bool

    @property
    def angle(self) -> float:
        """The angle between the two full gradients, in degrees; NaN if one of them is zero."""
        return math.degrees(math.acos(self.cosine))

    @property
    def left_side(self) -> float:
        """1 + cos(angle) q_2 |D_2| C_2 / (q_1 |D_1| C_1)."""
        return 1.0 + self.cosine * self.signal_ratio


@dataclass(frozen=True, eq=False)
class ConditionPoint(ArrayValue):
    """The condition at one step, for every ordered pair of owners.

    Attributes:
        step: After how many steps.
        owners: Whom the arrays are about.
        cosines: cos(angle) between the full gradients of two owners; NaN where a gradient is zero.
        strengths: q_n |D_n| C_n of the plan at this step.
        losses: The mean loss of each owner's examples.
        descents: descent_n of the module's text; not positive: owner n's loss does not fall.
        unaccounted: Whether this was measured on training data, outside any guarantee.
    """

    step: int
    owners: tuple[str, ...]
    cosines: FloatArray
    strengths: FloatArray
    losses: FloatArray
    descents: FloatArray
    unaccounted: bool

    def __post_init__(self) -> None:
        for name in ("cosines", "strengths", "losses", "descents"):
            object.__setattr__(self, name, frozen_floats(getattr(self, name)))

    @property
    def left_sides(self) -> FloatArray:
        """Entry (n, m): the theorem's left side for the loss of owner n against owner m; NaN on the diagonal."""
        sides: FloatArray = 1.0 + self.cosines * self.strengths[None, :] / self.strengths[:, None]
        np.fill_diagonal(sides, np.nan)
        return sides

    def pair(self, owner: str, other: str) -> PairCondition:
        """The condition for the loss of ``owner`` against ``other``."""
        row, column = self._row(owner), self._row(other)
        if row == column:
            raise _validate.fail("other", other, "give two different owners")
        ratio = float(self.strengths[column] / self.strengths[row])
        return PairCondition(self.step, owner, other, float(self.cosines[row, column]), ratio, self.unaccounted)

    def to_json(self) -> dict[str, Any]:
        """Plain lists; NaN becomes None."""
        return {
            "step": self.step,
            "owners": list(self.owners),
            "cosines": _plain(self.cosines),
            "strengths": _plain(self.strengths),
            "left_sides": _plain(self.left_sides),
            "losses": _plain(self.losses),
            "descents": _plain(self.descents),
            "unaccounted": self.unaccounted,
        }

    def _row(self, owner: str) -> int:
        if owner not in self.owners:
            raise _validate.fail("owner", owner, f"choose one of {', '.join(self.owners)}")
        return self.owners.index(owner)


def measure_condition(
    trainer: Trainer,
    model: nn.Module,
    step: int,
    held_out: HeldOut | None,
    *,
    owners: Sequence[str] | None = None,
    on_training_data_unaccounted: bool = False,
) -> ConditionPoint:
    """The condition at ``model``, which has taken ``step`` steps of the trainer's plan.

    Args:
        trainer: Its plan, losses, clipping and engine are used; its examples only if asked for.
        model: It is evaluated without dropout and left as it was.
        step: Counted from 0; after the last step the plan's last terms are used.
        held_out: Examples outside the training.
        owners: Names to compare; by default all with examples and a part in the training.
        on_training_data_unaccounted: Measure on the training data instead, outside any guarantee; ``held_out`` is then
            None.
    """
    data = _chosen_data(trainer, held_out, on_training_data_unaccounted)
    terms = trainer.plan.at(min(step, trainer.plan.steps - 1))
    strengths = terms.sampling_rates * trainer.plan.table.sizes * terms.clipping_thresholds
    rows = _chosen_rows(trainer, data.groups, strengths, owners)
    with evaluating(model):
        gradients, losses, pull = _full_gradients(trainer, model, data, terms, rows)
    lengths = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)
    directions = gradients / lengths[:, None].to(gradients)
    cosines = (directions @ directions.mT).double().clamp(-1.0, 1.0)
    slopes = (directions @ pull).double()
    return ConditionPoint(
        step=step,
        owners=tuple(trainer.plan.table.names[row] for row in rows),
        cosines=cosines.cpu().numpy(),
        strengths=strengths[rows],
        losses=losses,
        descents=slopes.cpu().numpy() / strengths[rows],
        unaccounted=on_training_data_unaccounted,
    )


def condition_every(
    steps: int,
    trainer: Trainer,
    points: list[ConditionPoint],
    held_out: HeldOut | None,
    *,
    owners: Sequence[str] | None = None,
    on_training_data_unaccounted: bool = False,
) -> Callback:
    """A callback for `inosgd.training.fit` that appends to ``points`` after each ``steps``-th step."""

    def measure(state: TrainingState) -> None:
        points.append(
            measure_condition(
                trainer,
                state.model,
                state.step,
                held_out,
                owners=owners,
                on_training_data_unaccounted=on_training_data_unaccounted,
            )
        )

    return every(steps, measure)


def _chosen_data(trainer: Trainer, held_out: HeldOut | None, on_training_data: bool) -> HeldOut:
    if trainer.units is not None:
        raise InvalidArgumentError(
            "trainer: its examples are gathered in units, or augmented; the condition is measured for single examples"
        )
    if held_out is None and not on_training_data:
        raise InvalidArgumentError(
            "held_out=None: give held-out examples; on_training_data_unaccounted=True measures on the training data "
            "instead, outside any privacy guarantee"
        )
    if held_out is not None and on_training_data:
        raise InvalidArgumentError(
            "on_training_data_unaccounted=True: held_out is given too; leave it None or leave the training data alone"
        )
    return held_out or HeldOut(trainer.store, trainer.owners.assignment)


def _chosen_rows(trainer: Trainer, groups: IntArray, strengths: FloatArray, owners: Sequence[str] | None) -> list[int]:
    """The rows of the owners to compare: each needs examples to measure on and a part in the training."""
    names = trainer.plan.table.names
    usable = (np.bincount(groups, minlength=len(names)) > 0) & (strengths > 0)
    if owners is None:
        if usable.sum() > MOST_OWNERS:
            raise _validate.fail("owners", None, f"there are {usable.sum()}; name at most {MOST_OWNERS} of them")
        return [int(row) for row in np.flatnonzero(usable)]
    for name in owners:
        if name not in names or not usable[names.index(name)]:
            raise _validate.fail("owner", name, "give owners that are trained on and have examples to measure on")
    return [names.index(name) for name in dict.fromkeys(owners)]


def _full_gradients(
    trainer: Trainer, model: nn.Module, data: HeldOut, terms: Terms, rows: list[int]
) -> tuple[torch.Tensor, FloatArray, torch.Tensor]:
    """Of the owners in ``rows`` the mean gradients and losses; and the expected sum of clipped gradients of all owners.

    As in training, a gradient that is not finite counts as zero.
    """
    store = as_store(data.examples)
    parameters = [parameter.detach().flatten() for parameter in trainable_parameters(model).values()]
    pull = torch.zeros_like(torch.cat(parameters))
    gradients, losses = pull.repeat(len(rows), 1), np.zeros(len(rows))
    for group in np.unique(data.groups).tolist():
        members = np.flatnonzero(data.groups == group)
        expected = terms.sampling_rates[group] * trainer.plan.table.sizes[group]
        for piece in _pieces(members):
            with trainer.engine.on(model, trainer.losses_under(terms, trainer.shares), store.take(piece)) as batch:
                measured = batch.measure()
                factors = trainer.method.clipping.factors(measured.grad_norms, terms.thresholds_of(data.groups[piece]))
                pull += batch.weighted_sum(factors * expected / len(members)).to(pull)
                if group in rows:
                    gradients[rows.index(group)] += batch.weighted_sum(~measured.not_finite / len(members)).to(pull)
                    losses[rows.index(group)] += measured.losses.sum() / len(members)
    return gradients, losses, pull


def _pieces(members: IntArray) -> Iterator[IntArray]:
    for start in range(0, len(members), EXAMPLES_AT_ONCE):
        yield members[start : start + EXAMPLES_AT_ONCE]


def _plain(values: FloatArray) -> Any:
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None
    return plain.tolist()
