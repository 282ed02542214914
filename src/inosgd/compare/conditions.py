"""The condition of Thm. 3.1 along the trainings of a study, on held-out examples."""

from __future__ import annotations

from typing import Any

from inosgd.analysis.condition import ConditionPoint, HeldOut, condition_every
from inosgd.analysis.initial_drop import initial_drop, unmet_periods
from inosgd.compare.entrant import Entrant
from inosgd.compare.training import entered_data, evaluation_interval, train_once
from inosgd.errors import InvalidArgumentError
from inosgd.study.study import Study
from inosgd.training import Callback, Trainer


def condition_along(study: Study, entrant: Entrant, seed: int) -> dict[str, Any]:
    """The condition for the strictest owner's loss against the most liberal owner, over one training.

    ``points`` has the angle, the ratio of signals, the theorem's left side and both losses; ``unmet`` the periods in
    which the left side is not positive, so that the strict owner's loss may rise; ``initial_drop`` when it did.
    """
    data = entered_data(study, entrant, seed)
    names = data.owners.table.names
    if data.units is not None or study.config.augmentation is not None:
        raise InvalidArgumentError(f"{study.name}: the condition is measured for single examples, not for units")
    if not data.by_owner:
        raise InvalidArgumentError(
            f"{study.name}: every example is its own owner, so there are no two owners whose gradients to compare"
        )
    epsilons = data.owners.table.epsilons
    strict, liberal = names[int(epsilons.argmin())], names[int(epsilons.argmax())]
    judged = data.judged_by
    held_out = HeldOut((judged.inputs, judged.targets), judged.groups)
    points: list[ConditionPoint] = []

    def watch(trainer: Trainer) -> Callback:
        interval = evaluation_interval(trainer.plan.steps)
        return condition_every(interval, trainer, points, held_out, owners=[strict, liberal])

    run = train_once(study, data, entrant, seed, watch)
    steps = [point.step for point in run.curve]
    drop = initial_drop(
        steps,
        [point.owners[strict].loss for point in run.curve],
        [point.owners[liberal].loss for point in run.curve],
    )
    return {
        "owner": strict,
        "other": liberal,
        "points": [_point(point, strict, liberal) for point in points],
        "unmet": [period.__dict__ for period in unmet_periods(points, strict, liberal)],
        "initial_drop": None if drop is None else drop.__dict__,
        "measured_on": "held-out examples",
    }


def _point(point: ConditionPoint, strict: str, liberal: str) -> dict[str, Any]:
    pair = point.pair(strict, liberal)
    losses = dict(zip(point.owners, point.losses.tolist(), strict=True))
    return {
        "step": point.step,
        "angle": pair.angle,
        "signal_ratio": pair.signal_ratio,
        "left_side": pair.left_side,
        "loss": losses[strict],
        "other_loss": losses[liberal],
    }
