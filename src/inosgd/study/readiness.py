"""Readiness: what would weaken a training, found before it starts.

What would *stop* it is raised while it is prepared (`inosgd.study.running.prepare`), which also tries the model on a
few examples. What would *weaken* it is a finding by one of these rules, from the plan and from sizes, which are public,
and from how many held-out examples there are:

    seldom      an owner has less than one unit in an expected batch
    drowned     the norm of all steps' noise together, sigma sqrt(parameters) sqrt(T), is at least T times the largest
                sum that an expected batch can have: it would be so if every gradient pointed the same way
    few-judged  an owner has fewer than 30 held-out examples, so that its score is known to some 10 points at best
    no-shares   `auto` has no class shares to adjust the loss by
    little-left an owner has less than a quarter of its account left, and the noise of all follows from it
    unsaid      columns of the tables that the study neither uses nor ignores by name
    repeated-ids  a column that is not used looks as if several rows were about one person (`inosgd.study.repeats`)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from inosgd.analysis.findings import Finding, noise_ratio
from inosgd.gradients import parameter_count
from inosgd.method import AUTO
from inosgd.shown import rounded_down
from inosgd.study.account import shares_left
from inosgd.study.repeats import repeated_ids
from inosgd.study.running import Prepared
from inosgd.study.sources import unused_columns

ONE_EXAMPLE = 1.0
FEW = 30
LITTLE = 0.25
LISTED = 5
"""So many owners or columns are named in a text; the evidence has how many there are."""


def weaknesses(prepared: Prepared) -> tuple[Finding, ...]:
    """All findings, those that concern the whole model first."""
    file = prepared.study.file
    return (
        *_drowned(prepared),
        *(() if file is None else repeated_ids(file)),
        *_no_shares(prepared),
        *_little_left(prepared),
        *_seldom(prepared),
        *_few_judged(prepared),
        *_unsaid(prepared),
    )


def _drowned(prepared: Prepared) -> Iterator[Finding]:
    plan, parameters = prepared.trainer.plan, parameter_count(prepared.built.model)
    ratio = min(noise_ratio(phase.terms, plan.table.sizes, parameters) for phase in plan.phases) / math.sqrt(plan.steps)
    if ratio >= 1:
        text = (
            f"The noise of all steps together is {ratio:.2g} times as large as all gradients could be if they pointed "
            "the same way. A larger expected batch, larger budgets or a model with fewer parameters make it smaller."
        )
        yield Finding("drowned", "the model", text, {"noise_ratio": ratio, "parameters": parameters})


def _no_shares(prepared: Prepared) -> Iterator[Finding]:
    config, data = prepared.study.config, prepared.data
    if config.method.name == AUTO.name and data.task.kind == "classification" and config.method.adjustment is None:
        text = (
            "auto has no class shares, and trains with a plain loss. Declare them in [shares.owners] if they are "
            "public, or count them under the budgets with shares.count = true."
        )
        yield Finding("no-shares", "the model", text, {})


def _little_left(prepared: Prepared) -> Iterator[Finding]:
    shares = shares_left(prepared.study, prepared.trainer.plan.table)
    few = [name for name, share in shares.items() if share < LITTLE]
    if few:
        text = (
            f"{_shown(few)}: {rounded_down(100 * shares[few[0]], 3)} % of the account is left, and the noise of the "
            "whole training follows from it. Raise the budget, or train without these examples."
        )
        yield Finding("little-left", "owners", text, {"owners": len(few), "share": shares[few[0]]})


def _seldom(prepared: Prepared) -> Iterator[Finding]:
    plan = prepared.trainer.plan
    expected = plan.at(0).sampling_rates * plan.table.sizes
    rare = [name for name, count in zip(plan.table.names, expected, strict=True) if count < ONE_EXAMPLE]
    if rare:
        text = (
            f"{_shown(rare)}: less than one {plan.table.unit} in an expected batch. A larger expected batch or "
            "budget, or fewer steps, let more of them in."
        )
        yield Finding("seldom", "owners", text, {"owners": len(rare)})


def _few_judged(prepared: Prepared) -> Iterator[Finding]:
    held_out, names = prepared.data.held_out, prepared.data.groups.names
    if held_out is None:
        return
    counts = np.bincount(held_out.groups[held_out.groups >= 0], minlength=len(names))
    few = [name for name, count in zip(names, counts, strict=True) if count < FEW]
    if few:
        text = f"{_shown(few)}: fewer than {FEW} held-out examples, so that their scores say little."
        yield Finding("few-judged", "owners", text, {"owners": len(few)})


def _unsaid(prepared: Prepared) -> Iterator[Finding]:
    columns = [] if prepared.study.file is None else unused_columns(prepared.study.file)
    if columns:
        text = f"The study neither uses nor ignores {_shown(columns)}. Add them to data.features or data.ignore."
        yield Finding("unsaid", "columns", text, {"columns": len(columns)})


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" * (len(names) > LISTED)
    return ", ".join(names[:LISTED]) + more
