"""Pricing: what a tuning on private data costs every owner, and budgets for single trials that make it fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inosgd._arrays import FloatArray, IntArray, distinct_rows
from inosgd.accounting.privacy_loss import SampledGaussian, compose
from inosgd.accounting.renyi import RENYI_ORDERS, epsilon_from_renyi, renyi_divergences
from inosgd.accounting.selection import PoissonTrials, Trials, profile_epsilons, selection_divergences
from inosgd.accounts.charge import Charge
from inosgd.accounts.filter import UNIT
from inosgd.errors import InfeasibleError, InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.plan import Plan, Terms
from inosgd.planning import Rooms
from inosgd.study.account import rooms_of
from inosgd.study.config import TrainingConfig, plan_for
from inosgd.study.shares import settled
from inosgd.study.study import Study
from inosgd.tuning.candidates import Candidate, Space
from inosgd.tuning.trials import trial_data

MOST_ROUNDS = 12
CLOSE_ENOUGH = 0.97
"""Trial budgets are raised until the tuning spends 97% of every budget, or a plan leaves the rest unspent."""
MOST_PROFILES = 200
"""With more distinct exposures than this, their Rényi bounds stand in for whole privacy profiles."""

Planner = Callable[[OwnerTable, bool], list[Plan]]
"""From budgets of a single trial to the plan of every candidate, verified by dp-accounting or (faster) not."""


@dataclass(frozen=True, eq=False)
class Priced:
    """A tuning that has been paid for in advance.

    Attributes:
        study: What is tuned.
        candidates: What is chosen from.
        plans: Of a single trial of each candidate, for the budgets of single trials.
        trials: The distribution of their number.
        table: Owners and what they allow.
        one_trial: The epsilon of one trial for each owner, the largest of any candidate.
        tuning: The epsilon of the whole tuning for each owner; never above its budget.
    """

    study: Study
    candidates: tuple[Candidate, ...]
    plans: tuple[Plan, ...]
    trials: Trials
    table: OwnerTable
    one_trial: FloatArray
    tuning: FloatArray


def price_tuning(study: Study, space: Space, trials: Trials) -> Priced:
    """Plan the trials of a tuning on private data, and account for showing the best of them.

    Guarantee:
        ``tuning[n]`` bounds the epsilon, at owner n's delta, of `inosgd.tuning.tune_on_private_data` for each single
        training example of owner n, and is at most owner n's budget. A trial chooses its candidate at random and trains
        it; its divergence of any order is at most the largest of any candidate, because the choice does not depend on
        examples and may even be shown. `inosgd.accounting.selection` bounds the rest. Held-out examples are not
        covered: they decide, exactly, which trial is the best.

    Raises:
        InfeasibleError: If some owner's budget cannot carry the tuning.
    """
    _check_private(study)
    candidates = space.candidates(study.config)
    data = trial_data(study)
    configs = [settled(candidate.config.changed({"accountant": "rdp"}), data) for candidate in candidates]
    table = data.owners.table
    rooms = rooms_of(study, table)
    plans, one_trial, tuning = fitted(table, lambda part, verify: plans_of(configs, part, verify=verify), trials, rooms)
    return Priced(study, tuple(candidates), tuple(plans), trials, table, one_trial, tuning)


def fitted(
    table: OwnerTable, planner: Planner, trials: Trials, rooms: Rooms | None = None
) -> tuple[list[Plan], FloatArray, FloatArray]:
    """Plans for the largest budgets of single trials that ``table`` allows, and the epsilons of one trial and of all.

    With ``rooms``, the tuning also costs every owner at most its room at its order.

    Every owner's trial budget is moved by the ratio of what it allows to what the tuning costs it, until all fit and
    have little left. What is returned is planned and accounted for afresh, and fits, whatever the way there.
    """
    shares = fitting = np.full(len(table), 0.5)
    for _ in range(MOST_ROUNDS):
        planned = planner(_part(table, shares), False)
        _, tuning = tuning_epsilons(planned, table.deltas, trials)
        used = np.maximum(tuning / table.epsilons, _room_used(planned, trials, rooms))
        fits = (used <= 1).all()
        fitting = shares if fits else fitting
        if fits and ((used >= CLOSE_ENOUGH) | (shares == 1)).all():
            break
        shares = np.clip(shares * 0.995 / np.maximum(used, 1e-3), 1e-3, 1.0)
    plans = planner(_part(table, fitting), True)
    one_trial, tuning = tuning_epsilons(plans, table.deltas, trials)
    _refuse_excess(table, tuning)
    crowded = _room_used(plans, trials, rooms) > 1
    if crowded.any():
        name = table.names[int(np.argmax(crowded))]
        raise InfeasibleError(
            f"owner {name!r}: tuning costs more than is left in its account; ask for fewer trials, or for a larger "
            "budget",
            name,
        )
    return plans, one_trial, tuning


def _room_used(plans: Sequence[Plan], trials: Trials, rooms: Rooms | None) -> FloatArray:
    """The share of each owner's room that a tuning takes; 0 without rooms."""
    if rooms is None:
        return np.zeros(1)
    charge = Charge.of_selection(plans, trials)
    first, rows = distinct_rows(rooms.orders, *charge.table.T)
    cost = replace(charge, table=charge.table[first]).prices(rooms.orders[first])[rows, 0] * UNIT
    with np.errstate(divide="ignore"):
        return np.where(cost > 0, cost / rooms.divergences, 0.0)


def _part(table: OwnerTable, shares: FloatArray) -> OwnerTable:
    return OwnerTable(table.names, table.epsilons * shares, table.deltas, table.sizes, table.unit)


def _refuse_excess(table: OwnerTable, tuning: FloatArray) -> None:
    fits = tuning <= table.epsilons
    if not fits.all():
        owner = int(np.argmin(fits))
        raise InfeasibleError(
            f"owner {table.names[owner]!r}: tuning costs it {tuning[owner]:.3g} and it allows "
            f"{table.epsilons[owner]:g}; ask for fewer trials, tune on public data, or ask for a larger budget",
            table.names[owner],
        )


def tuning_epsilons(plans: Sequence[Plan], deltas: FloatArray, trials: Trials) -> tuple[FloatArray, FloatArray]:
    """For each owner the epsilon of one trial by the worst of ``plans``, and of showing the best of several trials."""
    columns = [column for plan in _distinct(plans) for phase in plan.charges for column in _exposure(phase.terms)]
    first, rows = distinct_rows(*columns)
    base = np.zeros((len(first), len(RENYI_ORDERS)))
    profiles = np.zeros_like(base) if isinstance(trials, PoissonTrials) and len(first) <= MOST_PROFILES else None
    for plan in _distinct(plans):
        base = np.maximum(base, _divergences(plan, first))
        if profiles is not None:
            profiles = np.maximum(profiles, _profiles(plan, first))
    unused = profiles if isinstance(trials, PoissonTrials) else np.zeros_like(base)
    best = selection_divergences(base, RENYI_ORDERS, trials, unused)
    sampled = np.any([phase.terms.sampling_rates > 0 for plan in plans for phase in plan.charges], axis=0)
    one, all_ = (epsilon_from_renyi(each[rows], RENYI_ORDERS, deltas)[0] for each in (base, best))
    return np.where(sampled, one, 0.0), np.where(sampled, all_, 0.0)


def _exposure(terms: Terms) -> tuple[FloatArray, FloatArray]:
    return terms.sampling_rates, terms.noise_multipliers()


def _divergences(plan: Plan, owners: IntArray) -> FloatArray:
    total = np.zeros((len(owners), len(RENYI_ORDERS)))
    for phase in plan.charges:
        rates, multipliers = (column[owners] for column in _exposure(phase.terms))
        total += phase.steps * renyi_divergences(rates, np.where(rates > 0, multipliers, np.inf))
    return total


def _profiles(plan: Plan, owners: IntArray) -> FloatArray:
    """For each owner, the delta of one trial at every epsilon that Poisson trials ask for."""
    targets, found = profile_epsilons(RENYI_ORDERS), np.zeros((len(owners), len(RENYI_ORDERS)))
    for row, owner in enumerate(owners.tolist()):
        steps = [
            SampledGaussian(float(rates[owner]), float(multipliers[owner]), phase.steps)
            for phase in plan.charges
            for rates, multipliers in (_exposure(phase.terms),)
            if rates[owner] > 0
        ]
        if steps:
            found[row] = compose(steps).delta(targets)
    return found


def plans_of(configs: Sequence[TrainingConfig], table: OwnerTable, *, verify: bool = True) -> list[Plan]:
    """A plan for each configuration; those that agree in all that a plan is made of share one."""
    wanted = {(each.plan, each.until_noise): each for each in configs}
    made = {asked: plan_for(each, table, verify=verify) for asked, each in wanted.items()}
    return [made[each.plan, each.until_noise] for each in configs]


def _distinct(plans: Sequence[Plan]) -> list[Plan]:
    return list({id(plan): plan for plan in plans}.values())


def _check_private(study: Study) -> None:
    if study.config.seed is not None:
        raise InvalidArgumentError(
            f"{study.name}: training.seed = {study.config.seed}: any party that knows it can remove the noise of every "
            "trial; leave it out"
        )
