"""Variants: which point of each owner's privacy curve a plan chooses.

Any pair (q_n, C_n) on owner n's own curve is allowed.

    uniform   one rate and one threshold for all, and the noise that the strictest budget needs (DP-SGD)
    sample    one threshold for all, a rate per owner (SAMPLE)
    scale     one rate for all, a threshold per owner (SCALE)
    both      rates on the path between SCALE's and SAMPLE's, a threshold per owner
    fair      alpha-fair shares of the expected batch, a threshold per owner, a cap on unequal signals
    threshold SCALE for budgets that are capped at the one budget that would do best alone
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting import Exposures, epsilons
from inosgd.errors import InfeasibleError
from inosgd.plan_config import VARIANTS
from inosgd.planning.classes import BudgetClasses
from inosgd.planning.request import Request
from inosgd.planning.shares import fair_rates
from inosgd.planning.solving import (
    LARGEST_MULTIPLIER,
    SMALLEST_MULTIPLIER,
    Solution,
    anchors_of,
    estimated_multipliers,
    estimated_rates,
    guess_rates,
    solve_multipliers,
    solve_rates,
    spread_from_anchors,
)

BATCH_TOLERANCE = 1e-3
MOST_CORRECTIONS = 40
NARROWEST = 1e-4
"""SAMPLE's noise scale is solved until the expected batch is this close, or its bracket this narrow."""

SIGNAL_TOLERANCE = 1e-3
"""Fair shares are corrected until no signal is further than this below a stricter one's."""

ROUNDING = 1e-12
WEAKEST = 24
"""How many of the classes with the smallest estimated signals are solved first, to know the cap of all others."""


def uniform(request: Request) -> Solution:
    """One rate for all, and for all the noise multiplier that the strictest class needs."""
    solution, present = scale(request), request.classes.examples > 0
    rates = np.where(present, solution.rates, 0.0)  # a budget without examples binds no owner
    return _evaluated(request, rates, np.full(len(rates), solution.multipliers[present].max()))


def scale(request: Request) -> Solution:
    """One rate for all, and the noise multiplier that each class needs at it."""
    return _with_multipliers(request, np.full(len(request.classes), request.rate))


def sample(request: Request) -> Solution:
    """One noise multiplier for all, and the rate that each class allows at it."""
    noise_scale, threshold = request.config.noise_scale, request.config.clipping_threshold
    if noise_scale is not None and threshold is not None:
        return _sample_for_noise(request, noise_scale, threshold)
    return _sample_for_batch(request)


def both(request: Request) -> Solution:
    """The geometric mean of SCALE's and SAMPLE's rates, weighted by the mix."""
    sampled = _sample_for_batch(request).rates
    mixed = sampled**request.fairness.mix * request.rate ** (1 - request.fairness.mix)
    total = float(np.dot(mixed, request.classes.examples))
    return _with_multipliers(request, np.minimum(mixed * (request.batch / total), 1.0))


def fair(request: Request) -> Solution:
    """Alpha-fair shares; then no signal per example above ``max_ratio`` times the smallest one."""
    classes, fairness = request.classes, request.fairness
    solution = _ordered_shares(request)
    signal = solution.rates / solution.multipliers
    cap = fairness.max_ratio * signal[classes.examples > 0].min()
    return _with_more_noise(request, solution, solution.multipliers * np.maximum(signal / cap, 1.0))


def threshold(request: Request) -> Solution:
    """SCALE for budgets capped at a threshold; what an owner is capped at stays unspent and its own.

    Cyffers and Ziani (arXiv 2605.13503) show for the mean of independent data that most of what individual budgets can
    gain comes from one well-chosen effective budget. Suppose that one budget, of Gaussian parameter mu, were used for
    all: the N(mu) examples whose owners allow it take part, the others do not. Against the noise their signal is

        N q sqrt(log(1 + mu^2 / (T q^2))),    q = min(b / N, 1),

    by the central limit for privacy. The threshold is the owner's budget for which this is largest: while q < 1, the
    one with the largest N(mu) mu. It follows from sizes, budgets, steps and expected batch alone.

    The paper is about the error of a mean. Here the criterion is the signal of a step, and stricter owners take part
    with their own budgets: at the common rate the total signal is at least that of the single budget. Capping is by
    noise multipliers, none of which is below that of the threshold; for owners with one delta, by epsilon.
    """
    solution = scale(request)
    least = solution.multipliers[_best_alone(request)]
    return _with_more_noise(request, solution, np.maximum(solution.multipliers, least))


SOLVERS: dict[str, Callable[[Request], Solution]] = dict(
    zip(VARIANTS, (uniform, sample, scale, both, fair, threshold), strict=True)
)


def _with_multipliers(request: Request, rates: FloatArray) -> Solution:
    return solve_multipliers(request.classes, rates, request.steps, request.accountant)


def _evaluated(request: Request, rates: FloatArray, multipliers: FloatArray) -> Solution:
    """A solution with more noise than was solved for: what it costs is computed again."""
    classes, exposures = request.classes, Exposures(rates, multipliers, request.steps)
    spent = epsilons([*classes.past, exposures], classes.deltas, request.accountant, resolution=classes.resolution)
    return Solution(rates, multipliers, spent)


def _with_more_noise(request: Request, solution: Solution, multipliers: FloatArray) -> Solution:
    """The same rates with multipliers that are nowhere smaller; what they cost is computed again where they differ.

    Guarantee:
        ``spent`` is an upper bound: what was certified for less noise covers more noise, which a rounding adds.
    """
    changed = np.flatnonzero(multipliers > solution.multipliers * (1 + ROUNDING))
    spent = solution.spent.copy()
    few = replace(request, classes=request.classes.only(changed))
    spent[changed] = _evaluated(few, solution.rates[changed], multipliers[changed]).spent
    return Solution(solution.rates, multipliers, spent)


def _best_alone(request: Request) -> int:
    """The class whose budget, used for all examples that allow it and for no others, gives the largest signal."""
    mu, examples = request.mu, request.classes.examples
    by_budget = np.argsort(mu, kind="stable")
    allowing = np.cumsum(examples[by_budget][::-1])[::-1]
    rates = np.minimum(request.batch / allowing, 1.0)
    signal = allowing * rates * np.sqrt(np.log1p(mu[by_budget] ** 2 / (request.steps * rates**2)))
    return int(by_budget[np.argmax(signal)])


def _ordered_shares(request: Request) -> Solution:
    """Alpha-fair shares in which a larger budget never has the smaller signal per example.

    The shares come from the central limit; where it is off, a class may end up below a stricter one. Its rate is then
    raised, all rates are brought back to the expected batch, and thresholds are solved again: at the anchors, until
    they are in order, and then for all.
    """
    classes, steps, accountant = request.classes, request.steps, request.accountant
    anchors = anchors_of(classes)
    few = classes.only(anchors)
    rates = fair_rates(request.mu, classes.examples, steps, request.batch, request.fairness.exponent)
    for _ in range(MOST_CORRECTIONS):
        solution = solve_multipliers(few, rates[anchors], steps, accountant)
        signal = solution.rates / solution.multipliers
        shortfall = _within_deltas(few, signal, np.maximum.accumulate) / signal
        if shortfall.max() <= 1 + SIGNAL_TOLERANCE:
            if len(few) == len(classes):
                return _never_less_for_more(request, solution)  # all are anchors, and solved
            break
        raised = rates * spread_from_anchors(classes, anchors, shortfall) ** 1.5
        rates = np.minimum(raised * (request.batch / float(np.dot(raised, classes.examples))), 1.0)
    return _never_less_for_more(request, _capped(request, rates))


def _capped(request: Request, rates: FloatArray) -> Solution:
    """The noise multipliers at these rates; of many classes none below what the cap on signals will leave.

    The smallest signal sets the cap. It is one of those that are estimated to be smallest, which are solved first.
    """
    classes, ratio = request.classes, request.fairness.max_ratio
    if not classes.many or len(classes) <= WEAKEST:
        return _with_multipliers(request, rates)
    estimated = rates / estimated_multipliers(classes, rates, request.steps, request.accountant)
    by_signal = np.argsort(estimated, kind="stable")
    weakest, others = np.sort(by_signal[:WEAKEST]), np.sort(by_signal[WEAKEST:])
    solved = solve_multipliers(classes.only(weakest), rates[weakest], request.steps, request.accountant)
    least = rates[others] / (ratio * (solved.rates / solved.multipliers).min())
    rest = solve_multipliers(classes.only(others), rates[others], request.steps, request.accountant, least)
    multipliers, spent = np.empty(len(classes)), np.empty(len(classes))
    for rows, part in ((weakest, solved), (others, rest)):
        multipliers[rows], spent[rows] = part.multipliers, part.spent
    return Solution(rates, multipliers, spent)


def _never_less_for_more(request: Request, solution: Solution) -> Solution:
    """The same rates; a class whose signal is above that of a larger budget gets a little more noise."""
    signal = solution.rates / solution.multipliers
    allowed = _within_deltas(request.classes, signal[::-1], np.minimum.accumulate, backwards=True)[::-1]
    return _with_more_noise(request, solution, solution.multipliers * np.maximum(signal / allowed, 1.0))


def _within_deltas(
    classes: BudgetClasses,
    values: FloatArray,
    accumulate: Callable[[FloatArray], FloatArray],
    backwards: bool = False,
) -> FloatArray:
    """``accumulate`` over the classes of each delta, which come strictest first (last if ``backwards``)."""
    deltas = classes.deltas[::-1] if backwards else classes.deltas
    starts = np.flatnonzero(np.append(False, deltas[1:] != deltas[:-1]))
    return np.concatenate([accumulate(part) for part in np.split(values, starts)])


def _sample_for_noise(request: Request, noise_scale: float, threshold: float) -> Solution:
    """The largest rates at a given noise; refused where they do not even add up to one example per step."""
    classes, multiplier = request.classes, noise_scale / threshold
    if multiplier >= SMALLEST_MULTIPLIER:
        solution = solve_rates(classes, multiplier, request.steps, request.accountant)
        if np.dot(solution.rates, classes.examples) >= 1:
            return solution
    one_example = replace(request.config, expected_batch_size=1.0, noise_scale=None)
    enough = float(_sample_for_batch(replace(request, config=one_example)).multipliers[0]) * threshold
    owner = classes.names[int(np.argmin(classes.epsilons))]
    raise InfeasibleError(
        f"noise_scale={noise_scale:g}: owner {owner!r} and the others can hardly be sampled at all with so "
        f"little noise; give a noise scale of at least {enough:.3g}, where one example per step is allowed",
        owner=owner,
    )


def _sample_for_batch(request: Request) -> Solution:
    """The common noise multiplier at which the largest rates add up to the expected batch.

    It is found at the anchors, and all rates are then solved at it. Of many classes with a past, where anchors tell
    less of the others, estimates for all come first, and the accountant's rates for all are made to add up at last.
    """
    classes = request.classes
    if request.batch >= float(classes.examples.sum()) * (1 - 1e-9):
        return uniform(request)  # every rate must be 1
    anchors, everyone = anchors_of(classes), np.arange(len(classes))

    def exact(few: BudgetClasses, multiplier: float, guess: FloatArray) -> FloatArray:
        return solve_rates(few, multiplier, request.steps, request.accountant, guess).rates

    def estimated(few: BudgetClasses, multiplier: float, guess: FloatArray) -> FloatArray:
        return estimated_rates(few, multiplier, request.steps, request.accountant, guess)

    wrong = np.zeros(len(classes))
    if classes.past and classes.many:
        for which, solve in ((everyone, estimated), (anchors, exact), (everyone, exact)):
            knob, wrong = _balanced(request, which, solve, wrong)
    else:
        knob, wrong = _balanced(request, anchors, exact, wrong)
    guess = np.minimum(guess_rates(request.mu, math.exp(knob), request.steps) * np.exp(wrong), 1.0)
    return _cut_to_batch(request, solve_rates(classes, math.exp(knob), request.steps, request.accountant, guess))


def _balanced(
    request: Request,
    which: IntArray,
    solve: Callable[[BudgetClasses, float, FloatArray], FloatArray],
    start: FloatArray,
) -> tuple[float, FloatArray]:
    """The log multiplier at which rates add up to the expected batch, and the logs of the central limit's errors there.

    The central limit, with what is known of its errors at the ``start``, gives the first multiplier. After each
    solution for the classes ``which``, its rates are corrected by what the limit was wrong by, a factor whose logarithm
    is taken to be linear between the two multipliers that came closest; a bracket of multipliers guards against the
    jumps of Rényi accounting, and is halved where corrections only swing from side to side.
    """
    classes, batch, mu = request.classes, request.batch, request.mu
    few = classes.only(which)
    known: list[tuple[float, FloatArray]] = []
    misses: dict[float, float] = {}

    def wrong_at(log_multiplier: float) -> FloatArray:
        return start + _on_line(known[:2], log_multiplier)

    def guess(log_multiplier: float) -> FloatArray:
        limit = guess_rates(mu, math.exp(log_multiplier), request.steps)
        return np.minimum(limit * np.exp(wrong_at(log_multiplier)), 1.0)

    def surplus(log_multiplier: float) -> float:
        return float(np.dot(guess(log_multiplier), classes.examples)) - batch

    low, high = math.log(SMALLEST_MULTIPLIER), math.log(LARGEST_MULTIPLIER)
    knob = _root_or_end(surplus, low, high)
    for iteration in range(MOST_CORRECTIONS):
        rates = solve(few, math.exp(knob), guess(knob)[which])
        wrong = np.log(rates / guess_rates(mu[which], math.exp(knob), request.steps)) - start[which]
        wrong = spread_from_anchors(classes, which, np.where(rates < 1, wrong, np.maximum(wrong, 0.0)))
        known.insert(0, (knob, wrong))
        missed = surplus(knob)
        misses[knob] = abs(missed)
        if abs(missed) <= BATCH_TOLERANCE * batch:
            break
        low, high = (knob, high) if missed < 0 else (low, knob)
        if high - low < NARROWEST:
            knob = high  # a jump: beyond it the rates add up to more than was asked for, and are cut
            break
        known.sort(key=lambda one: misses[one[0]])
        proposal = _root_or_end(surplus, low, high)
        halving = iteration >= 6 and iteration % 2 == 0
        knob = (low + high) / 2 if halving or proposal in misses else proposal
    return knob, wrong_at(knob)


def _on_line(known: Sequence[tuple[float, FloatArray]], at: float) -> FloatArray | float:
    """The line through what is known at two places, not far beyond them; the only value that is known, or 0."""
    if len(known) < 2:
        return known[0][1] if known else 0.0
    (place, value), (other_place, other) = known
    return value + (other - value) * min(max((at - place) / (other_place - place), -1.0), 1.0)


def _cut_to_batch(request: Request, solution: Solution) -> Solution:
    """Rates that add up to more than the expected batch, lowered in proportion; lower rates cost less."""
    total = float(np.dot(solution.rates, request.classes.examples))
    if total <= request.batch * (1 + BATCH_TOLERANCE):
        return solution
    return _evaluated(request, solution.rates * (request.batch / total), solution.multipliers)


def _root_or_end(surplus: Callable[[float], float], low: float, high: float) -> float:
    """Where ``surplus``, increasing in the log of the multiplier, is 0; the end of the range if it never is."""
    if surplus(low) >= 0:
        return low
    return high if surplus(high) <= 0 else float(brentq(surplus, low, high, xtol=1e-9))
