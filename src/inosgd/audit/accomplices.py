"""Accomplices: public examples whose weights a canary changes, so that an audit sees what the order does.

A training has no real examples, but accomplices with equal losses and a canary that ranks before or behind them. Each
accomplice has the sign with which the canary changes its weight, so that all changes add up. With correct code the
whole change is exactly the canary's threshold (Thm. 3.3).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from inosgd._arrays import FloatArray
from inosgd.analysis.task import regression
from inosgd.audit.game import FIRST, GRADIENT_NORM, LAST, Game, Played, observer_of, train_with
from inosgd.audit.insertion import Inserted
from inosgd.audit.practice import Practice
from inosgd.clipping import MARGIN
from inosgd.importance import importance_weights
from inosgd.order import Candidates
from inosgd.plan import Phase
from inosgd.randomness import SeededSource, uniforms
from inosgd.study.study import LabelledExamples, StudyData


def play_order(game: Game, row: int, label: str) -> Played:
    """One training of accomplices alone, with a canary of the owner in ``row`` among them by a fair coin.

    The study's model has no part in it; one with a single weight stands in for it, in float64, in which accomplices
    add up to what they should.
    """
    source = SeededSource(game.seed).stream(label)
    included = bool(uniforms(source.stream("coins"), 1)[0] < 0.5)
    claimed = game.claimed.phases[0].terms
    practice = _with_public_owner(game.practice, float(game.practice.terms.clipping_thresholds[row]))
    scene = _scene(practice, row)
    count = len(scene.signs)
    norm = GRADIENT_NORM * float(claimed.clipping_thresholds[row])
    inserted = Inserted(
        np.zeros(count + 1, dtype=np.int64), norm * np.append(scene.signs, 1.0), np.append(np.zeros(count), scene.loss)
    )
    rows = np.append(np.full(count, len(game.claimed.table)), row)
    if not included:
        inserted, rows = inserted.take(np.arange(count)), rows[:-1]
    observer = observer_of(claimed, np.array([row]), game.learning_rate, scene.baseline / claimed.noise_scale)
    study = dataclasses.replace(game.study, model=_single_weight, origin="a single weight")
    stand_in = dataclasses.replace(game, study=study)
    train_with(stand_in, practice, _without_examples(game.data), inserted, rows, observer, source)
    return Played(np.array([[included]]), observer.white[None], observer.black[None])


def _single_weight(_: StudyData, seed: int) -> nn.Module:
    return nn.Linear(1, 1, bias=False, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Scene:
    """Accomplices and a canary, arranged so that the canary's whole effect shows.

    Attributes:
        loss: The canary's, before or behind the accomplices.
        signs: Of the accomplices' gradients: the sign of what the canary does to their weights.
        baseline: Their weighted sum without the canary.
        effect: How far the canary moves the weighted sum, over its threshold. At most 1 with correct code.
    """

    loss: float
    signs: FloatArray
    baseline: float
    effect: float


def _scene(practice: Practice, row: int) -> Scene:
    """The more revealing of the two places that a canary can have, by the practice's own order and tail."""
    return max((_placed(practice, row, loss) for loss in (LAST, FIRST)), key=lambda scene: scene.effect)


def _placed(practice: Practice, row: int, loss: float) -> Scene:
    importance, threshold = practice.method.importance, float(practice.terms.clipping_thresholds[row])
    length = 0.0 if importance is None or importance.length is None else importance.length
    count = max(32, math.ceil(1.5 * length / threshold))  # a batch half as long again as the tail
    without, together = (_weights(practice, row, np.append(np.zeros(count), more)) for more in ([], [loss]))
    change = together[:count] - without
    signs = np.where(change < 0, -1.0, 1.0)
    baseline = float((without * signs).sum()) * threshold * (1 - MARGIN)
    return Scene(loss, signs, baseline, float(np.abs(change).sum() + together[-1]))


def _weights(practice: Practice, row: int, losses: FloatArray) -> FloatArray:
    """The weights of a batch of accomplices with loss 0 and, with another loss, a canary."""
    count = len(losses)
    candidates = Candidates(np.arange(count), np.zeros(count, dtype=np.int64), losses, np.ones(count))
    owners = np.where(losses == 0, len(practice.plan.table) - 1, row)
    tail = practice.method.tail(practice.plan.expected_threshold_sum())
    ranking = practice.method.order.ranking(candidates, SeededSource(0))
    return importance_weights(tail, practice.terms.thresholds_of(owners), ranking)


def _with_public_owner(practice: Practice, threshold: float) -> Practice:
    """One more owner, in the last row: without a limit, in every batch, clipped to ``threshold``."""
    plan, terms, table = practice.plan, practice.terms, practice.plan.table
    name = next(name for name in ("public", *map(str, range(len(table) + 1))) if name not in table.names)
    wider = dataclasses.replace(
        table,
        names=(*table.names, name),
        epsilons=np.append(table.epsilons, np.inf),
        deltas=np.append(table.deltas, 0.5),
        sizes=np.append(table.sizes, 0),
    )
    more = dataclasses.replace(
        terms,
        sampling_rates=np.append(terms.sampling_rates, 1.0),
        clipping_thresholds=np.append(terms.clipping_thresholds, threshold),
    )
    widened = dataclasses.replace(
        plan, table=wider, phases=(Phase(plan.steps, more),), spent=np.append(plan.spent, np.inf), count=None
    )
    plain = dataclasses.replace(practice.method, adjustment=None)  # a single weight has no classes
    return dataclasses.replace(practice, plan=widened, method=plain, shares=None)


def _without_examples(data: StudyData) -> StudyData:
    """No example at all, and a task of one output, which the single weight has."""
    none = np.zeros(0, dtype=np.int64)
    owners = dataclasses.replace(
        data.owners, table=dataclasses.replace(data.owners.table, sizes=0 * data.owners.table.sizes), assignment=none
    )
    nothing = torch.zeros(0, 1, dtype=torch.float64)
    examples, task = LabelledExamples(nothing, nothing), regression(["nothing"])
    units = (
        None if data.units is None else dataclasses.replace(data.units, rows=none, ends=none, keys=none.view(np.uint64))
    )
    return dataclasses.replace(data, owners=owners, examples=examples, task=task, train_groups=none, units=units)
