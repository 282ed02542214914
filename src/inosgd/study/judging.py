"""Judging: how a model of a study does on held-out examples."""

from __future__ import annotations

from torch import nn

from inosgd.analysis.evaluation import Evaluation, evaluate
from inosgd.runs.folder import RunFolder
from inosgd.study.study import StudyData


def judge(data: StudyData, model: nn.Module, step: int, *, measure: bool = False) -> Evaluation:
    """The evaluation after ``step``, by the study's groups; with all measures if ``measure`` is set.

    Raises:
        InvalidArgumentError: If no example is held out.
    """
    held_out = data.judged_by
    examples = (held_out.inputs, held_out.targets, held_out.groups)
    return evaluate(data.task, model, *examples, data.groups.names, step, measure=measure)


def curve_of(run: RunFolder) -> list[Evaluation]:
    """The evaluations of a run in which some owner's kind of data was held out; the latest of each step."""
    by_step = {line["step"]: line for line in run.metrics() if line.get("owners")}
    return [Evaluation.from_json(by_step[step]) for step in sorted(by_step)]
