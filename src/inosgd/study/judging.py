"""Judging: how a model of a study does on held-out examples."""

from __future__ import annotations

from torch import nn

from inosgd.analysis.evaluation import Evaluation, evaluate
from inosgd.study.study import Study, StudyData


def judge(study: Study, data: StudyData, model: nn.Module, step: int) -> Evaluation:
    """The evaluation after ``step``, by the study's groups.

    Raises:
        InvalidArgumentError: If no example is held out.
    """
    held_out = data.judged_by
    examples = (held_out.inputs, held_out.targets, held_out.groups)
    return evaluate(model, *examples, data.groups.names, step, balanced=study.evaluation.balanced)
