"""Variants: which point of each owner's privacy curve a plan chooses.

Any pair (q_n, C_n) on owner n's own curve is allowed.

    uniform   one rate and one threshold for all, and the noise that the strictest budget needs (DP-SGD)
    sample    one threshold for all, a rate per owner (SAMPLE)
    scale     one rate for all, a threshold per owner (SCALE)
    both      rates on the path between SCALE's and SAMPLE's, a threshold per owner
    fair      alpha-fair shares of the expected batch, a threshold per owner, a cap on unequal signals
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.accounting import epsilons_spent
from inosgd.errors import InfeasibleError, InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan, Terms
from inosgd.planning.classes import BudgetClasses
from inosgd.planning.shares import fair_rates
from inosgd.planning.solving import (
    LARGEST_MULTIPLIER,
    SMALLEST_MULTIPLIER,
    anchors_of,
    gaussian_mu,
    guess_rates,
    solve_multipliers,
    solve_rates,
    spread_from_anchors,
)
from inosgd.planning.verification import verify_plan

BATCH_TOLERANCE = 1e-3
FARTHEST_BATCH = 0.01
MOST_CORRECTIONS = 20
"""SAMPLE's noise scale is solved until the expected batch is within the first; beyond the second is an error."""


@dataclass(frozen=True)
class Fairness:
    """The knobs of the variants that trade one owner's signal for another's.

    Attributes:
        exponent: For ``fair``: 0 gives the most total signal, infinity equal signals.
        max_ratio: For ``fair``: no owner's signal per record may exceed this many times the strictest one's.
            1 is the balance of DP-SGD, infinity sets no cap. What an owner is capped at stays unspent and its own.
        mix: For ``both``: 0 is SCALE, 1 is SAMPLE.
    """

    exponent: float = 8.0
    max_ratio: float = 2.0
    mix: float = 0.5

    def __post_init__(self) -> None:
        if not self.exponent >= 0:
            raise _validate.fail("exponent", self.exponent, "give a number of at least 0, or math.inf")
        if not self.max_ratio >= 1:
            raise _validate.fail("max_ratio", self.max_ratio, "give a number of at least 1, or math.inf")
        _validate.closed_unit(mix=self.mix)


@dataclass(frozen=True)
class Request:
    """What a plan is asked for; two of batch, threshold and noise scale are given and the third follows."""

    classes: BudgetClasses
    steps: int
    batch: float | None
    threshold: float | None
    noise_scale: float | None
    accountant: str
    fairness: Fairness

    @property
    def rate(self) -> float:
        """The common rate of plans that treat all records alike."""
        return (self.batch or 0.0) / float(self.classes.records.sum())

    @property
    def mu(self) -> FloatArray:
        """The Gaussian parameter that each class allows."""
        return gaussian_mu(self.classes.epsilons, self.classes.deltas)


@dataclass(frozen=True, eq=False)
class Solution:
    """A rate and a noise multiplier for each class."""

    rates: FloatArray
    multipliers: FloatArray


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
    verify: bool = True,
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
        verify: Whether dp-accounting checks the plan too.

    Guarantee:
        The plan's ``spent`` is computed afresh from its terms and does not exceed any budget; with ``verify``,
        dp-accounting agrees.
    """
    request = _checked_request(
        table, steps, variant, expected_batch_size, clipping_threshold, noise_scale, accountant, fairness
    )
    solution = VARIANTS[variant](request)
    terms = _terms(table, request, solution)
    phases = (Phase(steps, terms),)
    plan = Plan(table, phases, variant, accountant, epsilons_spent(phases, table.deltas, accountant))
    if verify:
        verify_plan(plan)
    return plan


def signals(plan: Plan, step: int = 0) -> FloatArray:
    """Each owner's signal against the noise, q_n |D_n| C_n / sigma."""
    terms = plan.at(step)
    return terms.sampling_rates * plan.table.sizes * terms.clipping_thresholds / terms.noise_scale


def widest_angle(plan: Plan, step: int = 0) -> float:
    """Up to which angle between two owners' gradients the paper's condition can hold for any two owners, in degrees.

    Thm. 3.1 needs 1 + cos(angle) s_2 / s_1 > 0 for the largest signal s_2 and the smallest s_1.
    """
    present = signals(plan, step)[plan.table.sizes > 0]
    ratio = float(present.max() / present.min()) if len(present) and present.min() > 0 else math.inf
    return math.degrees(math.acos(max(-1.0, -1.0 / ratio)))


def _uniform(request: Request) -> Solution:
    rates = np.full(len(request.classes), request.rate)
    multipliers = solve_multipliers(request.classes, rates, request.steps, request.accountant)
    return Solution(rates, np.full(len(rates), multipliers.max()))


def _scale(request: Request) -> Solution:
    return _with_multipliers(request, np.full(len(request.classes), request.rate))


def _sample(request: Request) -> Solution:
    if request.noise_scale is not None and request.threshold is not None:
        multiplier = request.noise_scale / request.threshold
        rates = _rates_for_noise(request, multiplier)
    else:
        multiplier, rates = _sample_for_batch(request)
    return Solution(rates, np.full(len(rates), multiplier))


def _rates_for_noise(request: Request, multiplier: float) -> FloatArray:
    """The largest rates at a given noise; refused where they do not even add up to one example per step."""
    classes = request.classes
    if multiplier >= SMALLEST_MULTIPLIER:
        rates = solve_rates(classes, multiplier, request.steps, request.accountant)
        if np.dot(rates, classes.records) >= 1:
            return rates
    one_example = replace(request, batch=1.0, noise_scale=None)
    enough = _sample_for_batch(one_example)[0] * (request.threshold or 0.0)
    owner = classes.names[int(np.argmin(classes.epsilons))]
    raise InfeasibleError(
        f"noise_scale={request.noise_scale:g}: owner {owner!r} and the others can hardly be sampled at all with so "
        f"little noise; give a noise scale of at least {enough:.3g}, where one example per step is allowed",
        owner=owner,
    )


def _both(request: Request) -> Solution:
    sampled = _sample_for_batch(request)[1]
    mixed = sampled**request.fairness.mix * request.rate ** (1 - request.fairness.mix)
    total = float(np.dot(mixed, request.classes.records))
    return _with_multipliers(request, np.minimum(mixed * ((request.batch or 0.0) / total), 1.0))


def _fair(request: Request) -> Solution:
    classes, fairness = request.classes, request.fairness
    rates = fair_rates(request.mu, classes.records, request.steps, request.batch or 0.0, fairness.exponent)
    solution = _never_less_for_more(classes, _with_multipliers(request, rates))
    signal = solution.rates / solution.multipliers
    cap = fairness.max_ratio * signal[classes.records > 0].min()
    return Solution(solution.rates, solution.multipliers * np.maximum(signal / cap, 1.0))


def _with_multipliers(request: Request, rates: FloatArray) -> Solution:
    return Solution(rates, solve_multipliers(request.classes, rates, request.steps, request.accountant))


def _never_less_for_more(classes: BudgetClasses, solution: Solution) -> Solution:
    """Within a delta, a class whose signal fell below a stricter one's takes that one's terms.

    Terms that keep a stricter budget keep a larger one. Signals rise with budgets up to the tolerance of
    solving; this removes the tolerance.
    """
    chosen = np.arange(len(classes))
    signal = solution.rates / solution.multipliers
    for index in range(1, len(classes)):
        same_delta = classes.deltas[index] == classes.deltas[index - 1]
        if same_delta and signal[index] < signal[chosen[index - 1]]:
            chosen[index] = chosen[index - 1]
    return Solution(solution.rates[chosen], solution.multipliers[chosen])


def _sample_for_batch(request: Request) -> tuple[float, FloatArray]:
    """The common noise multiplier at which the largest rates add up to the expected batch, and those rates.

    The central limit gives the first multiplier. After each exact solution at the anchors, its rates are corrected
    by what the limit was wrong by, which changes slowly with the multiplier.
    """
    classes, batch, mu = request.classes, request.batch or 0.0, request.mu
    anchors = anchors_of(classes)
    few = classes.only(anchors)
    correction = np.ones(len(classes))

    def guess(multiplier: float) -> FloatArray:
        return np.minimum(guess_rates(mu, multiplier, request.steps) * correction, 1.0)

    def surplus(log_multiplier: float) -> float:
        return float(np.dot(guess(math.exp(log_multiplier)), classes.records)) - batch

    multiplier = math.exp(_root_or_end(surplus))
    for _ in range(MOST_CORRECTIONS):
        rates = solve_rates(few, multiplier, request.steps, request.accountant, guess(multiplier)[anchors])
        wrong = np.log(rates / guess_rates(mu[anchors], multiplier, request.steps))
        correction = np.exp(spread_from_anchors(classes, anchors, np.where(rates < 1, wrong, np.maximum(wrong, 0.0))))
        if abs(surplus(math.log(multiplier))) <= BATCH_TOLERANCE * batch:
            break
        multiplier = math.exp(_root_or_end(surplus))
    rates = solve_rates(classes, multiplier, request.steps, request.accountant, guess(multiplier))
    reached = float(np.dot(rates, classes.records))
    if not abs(reached - batch) <= FARTHEST_BATCH * batch:
        raise InfeasibleError(
            f"expected_batch_size={batch:g}: by {request.accountant!r} no common threshold gives this batch; the "
            f"nearest found is {reached:.4g}; ask for that, or choose another variant or accountant"
        )
    return multiplier, rates


def _root_or_end(surplus: Callable[[float], float]) -> float:
    """Where ``surplus``, increasing in the log of the multiplier, is 0; the end of the range if it never is."""
    low, high = math.log(SMALLEST_MULTIPLIER), math.log(LARGEST_MULTIPLIER)
    if surplus(low) >= 0:
        return low
    return high if surplus(high) <= 0 else float(brentq(surplus, low, high, xtol=1e-9))


def _terms(table: OwnerTable, request: Request, solution: Solution) -> Terms:
    inverse_multipliers = 1 / solution.multipliers[request.classes.of_owner]
    if request.noise_scale is not None:
        noise_scale = request.noise_scale
    else:
        mean = float(np.average(inverse_multipliers, weights=table.sizes))
        noise_scale = (request.threshold or 0.0) / mean
    # One part in 10^12 to the private side: a quotient that rounds up would undo a certified multiplier.
    thresholds = noise_scale * inverse_multipliers * (1 - 1e-12)
    return Terms.for_owners(table, solution.rates[request.classes.of_owner], thresholds, noise_scale)


def _checked_request(
    table: OwnerTable,
    steps: int,
    variant: str,
    batch: float | None,
    threshold: float | None,
    noise_scale: float | None,
    accountant: str,
    fairness: Fairness | None,
) -> Request:
    _validate.whole(1, steps=steps)
    if variant not in VARIANTS:
        raise InvalidArgumentError(f"variant={variant!r}: choose one of {', '.join(VARIANTS)}")
    given = {"expected_batch_size": batch, "clipping_threshold": threshold, "noise_scale": noise_scale}
    for name, value in given.items():
        if value is not None:
            _validate.finite_positive(**{name: value})
    _check_targets(variant, given)
    for name, epsilon in zip(table.names, table.epsilons, strict=True):
        if math.isinf(epsilon):
            raise InfeasibleError(f"owner {name!r}: epsilon=inf; plans need a finite budget, so give one", owner=name)
    records = int(table.sizes.sum())
    if records == 0:
        raise InfeasibleError("sizes: no owner has an example; give at least one")
    if batch is not None and not batch <= records:
        raise InfeasibleError(
            f"expected_batch_size={batch:g}: the owners have {records} examples in all, and a rate is at most 1; "
            f"ask for at most {records}"
        )
    classes = BudgetClasses.of(table)
    return Request(classes, steps, batch, threshold, noise_scale, accountant, fairness or Fairness())


def _check_targets(variant: str, given: dict[str, float | None]) -> None:
    wanted = [{"expected_batch_size", "clipping_threshold"}]
    wanted.append({"noise_scale", "clipping_threshold" if variant == "sample" else "expected_batch_size"})
    named = {name for name, value in given.items() if value is not None}
    if named not in wanted:
        options = " or ".join(" and ".join(sorted(option)) for option in wanted)
        got = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise InvalidArgumentError(f"{got}: for variant {variant!r} give exactly {options}")


VARIANTS: dict[str, Callable[[Request], Solution]] = {
    "uniform": _uniform,
    "sample": _sample,
    "scale": _scale,
    "both": _both,
    "fair": _fair,
}
