"""The planner: from budgets to a verified plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting import Exposures, epsilons, epsilons_spent
from inosgd.accounting.renyi import renyi_divergences
from inosgd.errors import InfeasibleError
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan, Terms
from inosgd.plan_config import PlanConfig
from inosgd.planning.classes import BudgetClasses
from inosgd.planning.counts import count_terms
from inosgd.planning.request import Request
from inosgd.planning.rooms import Rooms
from inosgd.planning.solving import Solution
from inosgd.planning.variants import SOLVERS
from inosgd.planning.verification import reference_excess, verify_plan

LARGEST_COARSENESS = 1.02
"""Up to 2% above our own figure, what dp-accounting finds is put down to its grid and planned around."""


def make_plan(
    table: OwnerTable,
    config: PlanConfig,
    *,
    verify: bool = True,
    past: Sequence[Phase] | None = None,
    counted: Terms | None = None,
    resting: Collection[str] = (),
    rooms: Rooms | None = None,
) -> Plan:
    """A plan that uses every budget as far as its variant allows, and never more.

    Args:
        table: Owners, budgets and sizes; all of it is public.
        config: What is asked for.
        verify: Whether dp-accounting checks the plan too.
        past: Phases that the owners of ``table`` have been through already. They open the plan, and what they cost
            counts: the rest of ``config.steps`` is planned with what is left.
        counted: The terms under which classes were counted already. Without them and without a ``past``, a count is
            planned if ``config.counting`` asks for one.
        resting: Owners that are not sampled any more. Owners without examples never are, and spend nothing.
        rooms: What accounts leave to each owner of ``table`` (`inosgd.accounts`). What the ``past`` cost was charged to
            them before; a count that is planned is not.

    Guarantee:
        The plan's ``spent``, of all its phases together, is an upper bound by ``config.accountant`` and does not exceed
        any budget; with ``verify``, dp-accounting agrees for every distinct budget (a sample of them where there are
        more than 200). With ``rooms``, what is new in the plan costs each owner at most its room, at its order.
    """
    _check_deltas(table, config.allow_large_deltas)
    rows = _taking_part(table, resting)
    part = _part(table, rows)
    _check_feasible(part, config)
    phases = tuple(past or ())
    if counted is None and past is None and config.counting is not None:
        counted = count_terms(table, config.counting)
    before = phases if counted is None else (Phase(1, counted), *phases)
    if rooms is not None:
        rooms = _after_count(part, rooms.of(rows), None if past is not None else counted, rows)
    classes = BudgetClasses.of(part, config.profile_margin, _exposures(before, rows), config.accountant, rooms)
    request = Request(config, classes, phases, rows, counted)
    if not request.steps > 0:
        stand = config.steps - request.steps
        raise _validate.fail("steps", config.steps, f"{stand} steps stand already; ask for more, all counted")
    plan = _planned(table, request)
    return _verified(plan, table, request) if verify else plan


def _after_count(table: OwnerTable, rooms: Rooms, counted: Terms | None, rows: IntArray) -> Rooms:
    """The rooms of the owners of ``table``, the given ``rows``, less what a count that is planned costs them.

    Raises:
        InfeasibleError: If nothing is left to an owner.
    """
    left = rooms.divergences
    if counted is not None:
        rates = counted.sampling_rates[rows]
        multipliers = np.where(rates > 0, counted.noise_multipliers()[rows], np.inf)
        cost = np.array(
            [
                renyi_divergences(rate, z, [float(order)])[0, 0]
                for rate, z, order in zip(rates, multipliers, rooms.orders, strict=True)
            ]
        )
        left = np.maximum(left - cost, 0.0)
    if not (left > 0).all():
        name = table.names[int(np.argmin(left))]
        raise InfeasibleError(
            f"owner {name!r}: nothing is left in its account; ask it for a larger budget, settle reservations of runs "
            "that have ended, or train without its examples",
            name,
        )
    return Rooms(rooms.orders, left)


def _check_deltas(table: OwnerTable, allow_large: bool) -> None:
    large = table.too_large_delta()
    if large is not None and not allow_large:
        raise _validate.fail("delta", large[0], f"{large[1]}, or allow_large_deltas=True if this is meant")


def _check_feasible(table: OwnerTable, config: PlanConfig) -> None:
    """Raise unless the owners of ``table`` could meet what is asked for at all."""
    if np.isinf(table.epsilons).any():
        name = table.names[int(np.argmax(table.epsilons))]
        raise InfeasibleError(f"owner {name!r}: epsilon=inf; plans need a finite budget, so give one", name)
    batch, examples = config.expected_batch_size, int(table.sizes.sum())
    if batch is not None and not batch <= examples:
        raise InfeasibleError(
            f"expected_batch_size={batch:g}: the owners have {examples} examples in all, and a rate is at most 1; ask "
            f"for at most {examples}"
        )


def _planned(table: OwnerTable, request: Request) -> Plan:
    solution = SOLVERS[request.config.variant](request)
    terms = _terms(_part(table, request.rows), request, solution)
    phases = (*request.past, Phase(request.steps, _for_all(table, request, terms)))
    spent = _spent(table, phases, request, solution)
    return Plan(table, phases, request.accountant, spent, request.config, request.counted)


def _verified(plan: Plan, table: OwnerTable, request: Request) -> Plan:
    """The plan if dp-accounting confirms it, else one with as much less as dp-accounting is coarser than we are."""
    excess = reference_excess(plan)[0]
    if 1 < excess < LARGEST_COARSENESS:
        tighter = replace(request, classes=request.classes.tightened(excess * (1 + 1e-4)))
        plan = _planned(table, tighter)
    if excess > 1:
        verify_plan(plan)
    return plan


def _spent(table: OwnerTable, phases: tuple[Phase, ...], request: Request, solution: Solution) -> FloatArray:
    """What the phases cost each owner: computed afresh, or with many classes what each was certified for.

    Guarantee:
        An upper bound. What a class was certified for includes its past and a count, and owners of a class share both;
        the delta of a class is at most its owners'. Owners that take no part are computed afresh.
    """
    counted = () if request.counted is None else (Phase(1, request.counted),)
    if not request.classes.many:
        return epsilons_spent((*counted, *phases), table.deltas, request.accountant)
    spent, takes_part = np.zeros(len(table)), np.zeros(len(table), dtype=np.bool_)
    takes_part[request.rows] = True
    spent[request.rows] = solution.spent[request.classes.of_owner]
    resting = np.flatnonzero(~takes_part)
    if len(resting) and request.classes.past:
        lived = _exposures((*counted, *phases), resting)
        spent[resting] = epsilons(lived, table.deltas[resting], request.accountant)
    return spent


def _terms(table: OwnerTable, request: Request, solution: Solution) -> Terms:
    inverse_multipliers = 1 / solution.multipliers[request.classes.of_owner]
    noise_scale = request.config.noise_scale
    if noise_scale is None:
        mean = float(np.average(inverse_multipliers, weights=table.sizes))
        noise_scale = (request.config.clipping_threshold or 0.0) / mean
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
    return OwnerTable(names, table.epsilons[rows], table.deltas[rows], table.sizes[rows], table.unit)


def _exposures(phases: tuple[Phase, ...], rows: IntArray) -> tuple[Exposures, ...]:
    return tuple(
        Exposures(phase.terms.sampling_rates[rows], phase.terms.noise_multipliers()[rows], phase.steps)
        for phase in phases
    )


def _for_all(table: OwnerTable, request: Request, terms: Terms) -> Terms:
    """The terms with a row for every owner: those that take no part are not sampled, whatever their threshold."""
    if len(request.rows) == len(table):
        return terms
    rates, thresholds = np.zeros(len(table)), np.full(len(table), terms.clipping_thresholds.min())
    rates[request.rows], thresholds[request.rows] = terms.sampling_rates, terms.clipping_thresholds
    return Terms(rates, thresholds, terms.noise_scale, terms.expected_batch_size)
