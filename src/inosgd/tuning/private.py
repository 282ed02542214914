"""Tuning on private data: a random number of trials, of which the best is kept and nothing else is ever shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from inosgd import _validate
from inosgd.accounting.selection import draw_trials
from inosgd.accounts.charge import Charge
from inosgd.errors import InosgdError
from inosgd.parallel.runner import Failure, run_all
from inosgd.parallel.workers import LOCAL, Workers
from inosgd.plan import Plan
from inosgd.randomness import RandomSource
from inosgd.study.account import account_of, collection_of, noted_in_card, open_book
from inosgd.study.description import describe, guarantee
from inosgd.study.shares import settled
from inosgd.tuning.candidates import Candidate
from inosgd.tuning.pricing import Priced
from inosgd.tuning.trials import RANKINGS, Trial, TrialTask, run_trial, trial_data

GUARANTEE = (
    "The settings of this model were chosen on the private examples: a secret random number of trainings was carried "
    "out, the best by held-out examples was kept and the others were never seen. Let an owner allow (epsilon, delta). "
    "For each single {protected} of that owner, any party that sees this model, all models of its earlier steps, "
    "its plan and its settings can tell a tuning with {it} from one without it only as well as "
    "(epsilon, delta)-differential privacy allows, whatever else it knows. What every owner has spent is that of the "
    "whole tuning, by Rényi divergences and the bound of Papernot and Steinke (2022), and at most its budget."
)

DURATION = (
    "How many trainings there were, and how long they took: a party that knows it can learn more. Keep it to yourself."
)
INSTEAD = {
    "Held-out examples:": "Held-out examples: the model was never trained on them, but they decided, exactly, which "
    "training was kept, and what is reported about them is exact.",
    "Other models trained on the same examples, also": "Other models trained on the same examples outside of this "
    "tuning, also one that is trained again with the chosen settings: each spends budgets of its own, and nothing here "
    "adds them up.",
}
"""What the card of a tuned model says in the place of lines that begin like this."""


@dataclass(frozen=True, eq=False, repr=False)
class Chosen:
    """The best trial of a tuning: all that may be shown."""

    candidate: Candidate
    plan: Plan
    trial: Trial


def tune_on_private_data(
    priced: Priced, source: RandomSource, *, by: str = "overall", workers: Workers = LOCAL
) -> Chosen | None:
    """Draw the number of trials, train them all, and give back the best; None if the draw says that there is none.

    Guarantee:
        A party that sees what is returned learns about each single training example of owner n no more than
        (``priced.tuning[n]``, delta n)-differential privacy allows, if ``source`` cannot be predicted. Every trial
        takes all of its steps and noise from a secure source of its own. Ties are broken at random. The number of
        trials is drawn here and never shown; how long this takes depends on it. If the study has an account, the whole
        tuning is charged to it first.

    Raises:
        InosgdError: If a trial fails; nothing is then kept.
    """
    _validate.one_of(RANKINGS, by=by)
    _pay(priced)
    picked = [_below(len(priced.candidates), source) for _ in range(draw_trials(priced.trials, source))]
    ties = source.words(len(picked)).tolist()
    tasks = [TrialTask(priced.study, priced.candidates[row], priced.plans[row], None) for row in picked]
    best: tuple[float, int] = (-math.inf, -1)
    chosen = None
    for index, trial in run_all(run_trial, tasks, names=[task.candidate.label for task in tasks], workers=workers):
        if isinstance(trial, Failure):
            raise InosgdError(f"a trial failed, and nothing is kept: {trial.task}: {trial.error}")
        if (trial.score(by), ties[index]) > best:
            best = trial.score(by), ties[index]
            chosen = Chosen(tasks[index].candidate, tasks[index].plan, trial)
    return chosen


def _pay(priced: Priced) -> None:
    """Charge the whole tuning to the study's account, if it has one, before the first trial; it is never given back."""
    if account_of(priced.study) is None:
        return
    with open_book(priced.study) as book:
        charge = Charge.of_selection(priced.plans, priced.trials)
        book.check_unit(collection_of(priced.study), priced.table)
        state = book.reserve(collection_of(priced.study), priced.table.names, charge, purpose="tuning")
        book.commit(state.id, 1)
        book.settle(state.id, 1)


def described(priced: Priced, chosen: Chosen) -> tuple[nn.Module, dict[str, Any]]:
    """The chosen model, and the description that it is saved with: what it promises is that of the whole tuning."""
    data = trial_data(priced.study)
    study = replace(priced.study, config=settled(chosen.candidate.config, data))
    model = study.model(data, 0)
    model.load_state_dict(chosen.trial.weights)
    steps, evaluation = chosen.plan.steps, chosen.trial.evaluation
    description = describe(
        study,
        data,
        table=priced.table,
        spent=priced.tuning,
        steps=steps,
        evaluation=evaluation,
        count=chosen.plan.count,
        account=noted_in_card(priced.study),
    )
    privacy = description["privacy"]
    changes = {
        "accountant": "rdp, with selection",
        "guarantee": guarantee(privacy["unit"], GUARANTEE),
        "not_covered": [*map(_instead, privacy["not_covered"]), DURATION],
        "tuning": price_list(priced),
    }
    return model, {**description, "privacy": {**privacy, **changes}}


def _instead(line: str) -> str:
    return next((text for beginning, text in INSTEAD.items() if line.startswith(beginning)), line)


def price_list(priced: Priced) -> dict[str, Any]:
    """What the tuning is and costs, as plain values; nothing in it depends on an example."""
    return {
        "trials": priced.trials.to_json(),
        "candidates": [candidate.label for candidate in priced.candidates],
        "owners": {
            name: {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "one_trial": float(priced.one_trial[row]),
                "tuning": float(priced.tuning[row]),
            }
            for row, (name, budget, _) in enumerate(priced.table)
        },
    }


def _below(bound: int, source: RandomSource) -> int:
    """A uniform whole number below ``bound``, exactly: words beyond the last whole multiple are drawn again."""
    _validate.whole(1, bound=bound)
    limit = (1 << 64) - (1 << 64) % bound
    while True:
        word = int(source.words(1)[0])
        if word < limit:
            return word % bound
