"""Judging: how a model of a study does on held-out examples."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from inosgd.analysis.evaluation import Evaluation, evaluate
from inosgd.runs.folder import RunFolder
from inosgd.study.study import StudyData
from inosgd.training import TrainingState


def judge(data: StudyData, model: nn.Module, step: int, *, measure: bool = False) -> Evaluation:
    """The evaluation after ``step``, by the study's groups; with all measures if ``measure`` is set.

    Raises:
        InvalidArgumentError: If no example is held out.
    """
    held_out = data.judged_by
    examples = (held_out.inputs, held_out.targets, held_out.groups)
    return evaluate(data.task, model, *examples, data.groups.names, step, measure=measure)


def judge_result(data: StudyData, state: TrainingState, *, measure: bool = False) -> Evaluation:
    """The evaluation of what a training results in; if that is an average, of the last iterate beside it.

    Which of the two is the result is fixed by the configuration: nothing here chooses by held-out examples.
    """
    last = judge(data, state.model, state.step, measure=measure)
    if state.average is None:
        return last
    with state.result() as model:
        return replace(judge(data, model, state.step, measure=measure), last_iterate=last)


def curve_of(run: RunFolder) -> list[Evaluation]:
    """The evaluations of a run in which some owner's kind of data was held out; the latest of each step."""
    by_step = {line["step"]: line for line in run.metrics() if line.get("owners")}
    return [Evaluation.from_json(by_step[step]) for step in sorted(by_step)]
