"""The planner: from budgets to a verified plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting import Exposures, epsilons_spent
from inosgd.errors import InfeasibleError, InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.plan import Fairness, Phase, Plan, Preferences, Terms
from inosgd.planning.classes import BudgetClasses
from inosgd.planning.request import Request, Target
from inosgd.planning.solving import Solution
from inosgd.planning.variants import VARIANTS
from inosgd.planning.verification import reference_excess, verify_plan

LARGEST_COARSENESS = 1.02
"""Up to 2% above our own figure, what dp-accounting finds is put down to its grid and planned around."""


def make_plan(
    table: OwnerTable,
    *,
    steps: int,
    variant: str,
    expected_batch_size: float | None = None,
    clipping_threshold: float | None = None,
    noise_scale: float | None = None,
    accountant: str = "pld",
    fairness: Fairness | None = None,
    profile_margin: float | None = None,
    allow_large_deltas: bool = False,
    verify: bool = True,
    past: Sequence[Phase] | None = None,
    resting: Collection[str] = (),
) -> Plan:
    """A plan that uses every budget as far as its variant allows, and never more.

    Exactly two of ``expected_batch_size``, ``clipping_threshold`` and ``noise_scale`` are given: batch and
    threshold, and the noise scale follows; or a noise scale with the threshold (``sample``: the batch follows) or
    with the batch (other variants: the mean threshold follows).

    Args:
        table: Owners, budgets and sizes; all of it is public.
        steps: The number of steps.
        variant: One of `VARIANTS`.
        expected_batch_size: The mean of the batch size.
        clipping_threshold: The mean threshold over all records.
        noise_scale: The standard deviation of the noise on the sum.
        accountant: "pld" or "rdp".
        fairness: The knobs of ``fair`` and ``both``.
        profile_margin: Keep epsilon at delta / 10, / 100 and / 1000 within (1 + margin) of what a plain Gaussian
            mechanism with the same budget has there; None limits epsilon at delta alone.
        allow_large_deltas: Whether a delta may be one over the number of examples or more. Such a delta allows
            publishing an example whole, and is refused as a mistake unless this is True.
        verify: Whether dp-accounting checks the plan too.
        past: Phases that the owners of ``table`` have been through already. They open the plan, and what they cost
            counts: ``steps`` more are planned with what is left.
        resting: Owners that are not sampled any more. Owners without examples never are, and spend nothing.

    Guarantee:
        The plan's ``spent``, of all its phases together, is an upper bound by ``accountant`` and does not exceed any
        budget; with ``verify``, dp-accounting agrees for every distinct budget (a sample of them where there are more
        than 200).
    """
    _validate.whole(1, steps=steps)
    if variant not in VARIANTS:
        raise InvalidArgumentError(f"variant={variant!r}: choose one of {', '.join(VARIANTS)}")
    preferences = Preferences(fairness or Fairness(), profile_margin, allow_large_deltas)
    _check_deltas(table, allow_large_deltas)
    target = Target(expected_batch_size, clipping_threshold, noise_scale)
    target.check_for(variant)
    rows = _taking_part(table, resting)
    part = _part(table, rows)
    target.check_against(part)
    phases = tuple(past or ())
    classes = BudgetClasses.of(part, profile_margin, _exposures(phases, rows), accountant)
    request = Request(classes, steps, target, accountant, preferences, phases, rows)
    plan = _planned(table, request, variant)
    return _verified(plan, table, request) if verify else plan


def _check_deltas(table: OwnerTable, allow_large: bool) -> None:
    large = table.too_large_delta()
    if large is not None and not allow_large:
        raise _validate.fail("delta", large[0], f"{large[1]}, or allow_large_deltas=True if this is meant")


def _planned(table: OwnerTable, request: Request, variant: str) -> Plan:
    solution = VARIANTS[variant](request)
    terms = _terms(_part(table, request.rows), request, solution)
    phases = (*request.past, Phase(request.steps, _for_all(table, request, terms)))
    spent = _spent(table, phases, request, solution)
    return Plan(table, phases, variant, request.accountant, spent, request.preferences)


def _verified(plan: Plan, table: OwnerTable, request: Request) -> Plan:
    """The plan if dp-accounting confirms it, else one with as much less as dp-accounting is coarser than we are."""
    excess = reference_excess(plan)[0]
    if 1 < excess < LARGEST_COARSENESS:
        tighter = replace(request, classes=request.classes.tightened(excess * (1 + 1e-4)))
        plan = _planned(table, tighter, plan.variant)
    if excess > 1:
        verify_plan(plan)
    return plan


def _spent(table: OwnerTable, phases: tuple[Phase, ...], request: Request, solution: Solution) -> FloatArray:
    """What the phases cost each owner: computed afresh, or with many classes what each was certified for."""
    if request.classes.many and not request.past:
        spent = np.zeros(len(table))
        spent[request.rows] = solution.spent[request.classes.of_owner]
        return spent
    return epsilons_spent(phases, table.deltas, request.accountant)


def _terms(table: OwnerTable, request: Request, solution: Solution) -> Terms:
    inverse_multipliers = 1 / solution.multipliers[request.classes.of_owner]
    noise_scale = request.target.noise_scale
    if noise_scale is None:
        mean = float(np.average(inverse_multipliers, weights=table.sizes))
        noise_scale = (request.target.clipping_threshold or 0.0) / mean
    # One part in 10^12 to the private side: a quotient that rounds up would undo a certified multiplier.
    thresholds = noise_scale * inverse_multipliers * (1 - 1e-12)
    return Terms.for_owners(table, solution.rates[request.classes.of_owner], thresholds, noise_scale)


def _taking_part(table: OwnerTable, resting: Collection[str]) -> IntArray:
    """The rows of the owners that will be sampled: those with examples that do not rest."""
    rests = np.array([name in resting for name in table.names])
    rows = np.flatnonzero((table.sizes > 0) & ~rests)
    if not len(rows):
        raise InfeasibleError(
            "owners: none is left that has examples and anything to spend; give examples, or raise a budget"
        )
    return rows


def _part(table: OwnerTable, rows: IntArray) -> OwnerTable:
    """Some rows of the table."""
    if len(rows) == len(table):
        return table
    names = tuple(table.names[row] for row in rows)
    return OwnerTable(names, table.epsilons[rows], table.deltas[rows], table.sizes[rows])


def _exposures(phases: tuple[Phase, ...], rows: IntArray) -> tuple[Exposures, ...]:
    return tuple(
        Exposures(phase.terms.sampling_rates[rows], phase.terms.noise_multipliers()[rows], phase.steps)
        for phase in phases
    )


def _for_all(table: OwnerTable, request: Request, terms: Terms) -> Terms:
    """The terms with a row for everybody: those who take no part are not sampled, whatever their threshold."""
    if len(request.rows) == len(table):
        return terms
    rates, thresholds = np.zeros(len(table)), np.full(len(table), terms.clipping_thresholds.min())
    rates[request.rows], thresholds[request.rows] = terms.sampling_rates, terms.clipping_thresholds
    return Terms(rates, thresholds, terms.noise_scale, terms.expected_batch_size)
