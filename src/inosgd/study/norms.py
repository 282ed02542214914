"""Norms: how long gradients of held-out examples are against the thresholds that they would be clipped to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inosgd._arrays import FloatArray, IntArray
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.suggestions import NORMS
from inosgd.gradients.units import gradients_on
from inosgd.masks import torch_seeded_by
from inosgd.randomness import SeededSource
from inosgd.study.judging import judge_result
from inosgd.study.study import HeldOutExamples, LabelledExamples, StudyData
from inosgd.training import Trainer, TrainingState

MEASURED = 256
"""So many held-out examples, evenly spaced."""

QUANTILE = 0.9


def judge_end(trainer: Trainer, data: StudyData, state: TrainingState) -> Evaluation:
    """The last evaluation of a training, with all measures and the norms of held-out gradients against thresholds."""
    found = judge_result(data, state, measure=True)
    reached = norm_to_threshold(trainer, data, state)
    return found if reached is None else replace(found, measures={**found.measures, NORMS: reached})


def norm_to_threshold(trainer: Trainer, data: StudyData, state: TrainingState) -> float | None:
    """The 90 % quantile of gradient norm over clipping threshold, of the last iterate on held-out examples.

    None where nothing is clipped by the example (units), where no example is held out, and where it is not finite.
    Held-out examples are not protected, so that this costs no budget; the training is as if it had not been measured.
    """
    if data.held_out is None or trainer.units is not None or not len(data.held_out):
        return None
    held_out, terms = data.held_out, trainer.plan.at(max(state.step - 1, 0))
    rows = np.unique(np.linspace(0, len(held_out) - 1, MEASURED).round().astype(np.int64))
    examples = LabelledExamples(held_out.inputs, held_out.targets).take(rows)
    losses = trainer.losses_under(terms, state.shares)
    with torch_seeded_by(SeededSource(0)), gradients_on(trainer.engine, state.model, losses, examples) as gradients:
        norms = gradients.measure().grad_norms
    quantile = float(np.quantile(norms / _thresholds(terms.clipping_thresholds, data, held_out, rows), QUANTILE))
    return quantile if np.isfinite(quantile) else None


def _thresholds(of_owners: FloatArray, data: StudyData, held_out: HeldOutExamples, rows: IntArray) -> FloatArray:
    """The threshold of each example: its owner's, or the mean where examples have no owner among the groups."""
    mean = float(np.average(of_owners, weights=np.maximum(data.owners.table.sizes, 1)))
    if not data.by_owner:
        return np.full(len(rows), mean)
    groups = held_out.groups[rows]
    found: FloatArray = np.where(groups >= 0, of_owners[np.maximum(groups, 0)], mean)
    return found
