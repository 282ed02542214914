"""The canary audit: lower bounds on epsilon from worst-case gradients, one owner at a time.

The game, for an owner with rate q, threshold C, noise scale σ and T steps: a canary (`inosgd.audit.insertion`) is put
into the data by a fair coin, the model is trained, and the auditor says whether the canary was there.

white-box
    The auditor sees the parameters after every step, hence every noisy sum. Along the canary's coordinate, in units
    of σ, it is x_t ~ N(0, 1) without the canary and a mixture of N(0, 1) and, with probability q, N(C / σ, 1) with
    it. The score is the logarithm of the likelihood ratio under the claim,

        sum over t of log(1 - q + q exp(x_t / z - 1 / (2 z^2))),    z = σ / C.

    No other score separates better: with correct code the audit reaches the accountant's own trade-off.
black-box
    The auditor may ask the final model about the canary, whose answer is the canary's weight; the score is how far it
    moved, the sum of all x_t.
repeated
    Independent trainings on the study's data with one canary per owner. The first third of them chooses a threshold;
    on the others the counts are bounded by Clopper and Pearson's intervals (`inosgd.audit.bounds.Counts`). Two bounds:
    one without assumptions, and one for a mechanism of which only the amount of noise is in doubt.
one-run
    A single training with thousands of canaries per owner and the bound of Steinke, Nasr and Jagielski. It holds
    whatever canaries do to each other. A quarter of the canaries chooses how many of the others are guessed.
order
    Only for methods with a tail. Repeated trainings without real examples: public accomplices with equal losses and
    a canary that ranks before or behind them. The auditor, who knows the code, gives the accomplices signs such that
    every change of their weights by the canary adds up. With correct code the whole change is exactly C (Thm. 3.3).

All bounds of one audit hold together with its confidence (Bonferroni over owners, views and bounds). An owner's claim
is rejected if right guesses or the rates of right and wrong ones contradict its privacy profile, or a bound exceeds the
accounted epsilon; correct code is rejected with probability at most 1 - confidence. Presence by a coin is addition or
removal of one example, the relation that is accounted for, and bounds are at each owner's own delta. In a study that
protects units of several rows, a canary is a unit of `UNIT_ROWS` rows: a whole person is inserted or left out.

What is attacked: all of `train_step` as users run it. Canaries are rows of the training examples; batches come from the
step's own sampler, norms, clipping and sums from `BookkeepingEngine`, places and weights from the method's order and
tail, noise from the grid release, and every step is in a ledger that would refuse one too many. What is not: layers
other than a linear one (tests of `inosgd.gradients` compare them to plain autograd), `SecureSource` (a seed makes an
audit repeatable), and trainings by several processes.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from inosgd import _validate
from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.analysis.task import regression
from inosgd.audit.bounds import (
    Counts,
    best_threshold,
    epsilon_lower_bound,
    epsilon_within_family,
    one_run_bound,
    rates_reject,
    rejects,
)
from inosgd.audit.claims import MOST_OWNERS, Claim, claim_of
from inosgd.audit.insertion import CanaryLosses, CanaryModel, Inserted, mixed
from inosgd.audit.practice import Practice
from inosgd.clipping import MARGIN
from inosgd.counting import Labels
from inosgd.errors import InosgdError
from inosgd.gradients import ExampleLosses
from inosgd.importance import importance_weights
from inosgd.order import Candidates
from inosgd.parallel.runner import Failure, run_all
from inosgd.parallel.workers import LOCAL, Workers
from inosgd.plan import Phase, Plan, Terms
from inosgd.randomness import RandomSource, SeededSource, uniforms
from inosgd.study.study import LabelledExamples, Study, StudyData
from inosgd.training import StepDiagnostics, TrainingState, fit
from inosgd.units import Units

GRADIENT_NORM = 10.0
"""Of a canary, in units of its owner's threshold: clipping has something to do."""

UNIT_ROWS = 8
"""Of a canary, where the study protects units of several rows."""

FIRST, LAST = 1e6, -1e6
"""Losses that put an inserted example before or behind all others."""


@dataclass(frozen=True, eq=False)
class Game:
    """What is audited: the claims, the practice behind them, and the study.

    Attributes:
        study: Model and settings.
        data: The study's examples.
        claimed: The plan whose guarantee is tested.
        practice: What is really done.
        seed: Of everything.
    """

    study: Study
    data: StudyData
    claimed: Plan
    practice: Practice
    seed: int

    @property
    def owners(self) -> IntArray:
        """The rows of the owners that get canaries: all of them, or a dozen from the strictest to the most liberal."""
        rows = np.flatnonzero(self.claimed.table.sizes > 0)
        rows = rows[np.argsort(self.claimed.table.privacy_ranks[rows])]
        if len(rows) <= MOST_OWNERS:
            return np.sort(rows)
        return rows[np.linspace(0, len(rows) - 1, MOST_OWNERS).round().astype(np.int64)]

    @property
    def learning_rate(self) -> float:
        """Of every training, over the expected batch size; one in noise units is converted by what is claimed."""
        return self.study.config.rate_in_batch_units(self.claimed.phases[0].terms)

    def claim(self, row: int) -> Claim:
        """What is claimed for an owner."""
        return claim_of(self.claimed, np.array([row]), self.claimed.table.names[row])


@dataclass(frozen=True, eq=False)
class Played:
    """The outcome of trainings: one row per training, one column per canary."""

    included: BoolArray
    white: FloatArray
    black: FloatArray

    @classmethod
    def together(cls, parts: Sequence[Played]) -> Played:
        """Several trainings, one after the other."""
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("included", "white", "black"))
        )


@dataclass
class Observer:
    """Scores canaries from the parameters after every step, and from nothing else."""

    rates: FloatArray
    multipliers: FloatArray
    unit: float
    baseline: float
    white: FloatArray = field(init=False)
    black: FloatArray = field(init=False)
    _before: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.white, self.black, self._before = (np.zeros(len(self.rates)) for _ in range(3))

    def __call__(self, state: TrainingState, _: StepDiagnostics) -> None:
        """Take in one more step."""
        now = state.model.get_parameter("canaries.weight").detach()[0].double().numpy().copy()
        seen = (self._before - now) * self.unit - self.baseline
        self.white += log_likelihood_ratio(seen, self.rates, self.multipliers)
        self.black += seen
        self._before = now


def log_likelihood_ratio(seen: FloatArray, rates: FloatArray, multipliers: FloatArray) -> FloatArray:
    """log(1 - q + q exp(x / z - 1 / (2 z^2))), for any x."""
    with np.errstate(divide="ignore"):
        ratio: FloatArray = np.logaddexp(
            np.log1p(-rates), np.log(rates) + seen / multipliers - 1 / (2 * multipliers**2)
        )
    return ratio


def train_with(
    game: Game,
    practice: Practice,
    data: StudyData,
    inserted: Inserted,
    rows: IntArray,
    observer: Observer,
    source: RandomSource,
) -> None:
    """Train the study's model on ``data`` and the inserted examples, which belong to ``rows``, under observation."""
    model = _initial_model(game, len(observer.rates))
    optimizer = torch.optim.SGD(model.parameters(), lr=game.learning_rate)
    assignment = np.concatenate([data.owners.assignment, rows])
    inputs, targets = data.examples.all()
    copies = 1 if data.units is None else UNIT_ROWS
    units = None if data.units is None else data.units.followed_by(_canary_units(data.units, len(rows)))
    several = inserted.take(np.repeat(np.arange(len(inserted)), copies))
    examples = mixed(inputs, targets, several, model.canaries.weight.dtype)
    counted = np.append(data.class_numbers, np.zeros(len(several), dtype=np.int64))  # canaries are of the first class
    labels = None if practice.plan.count is None else Labels(data.task.names, counted)
    trainer = practice.trainer(assignment, examples, _with_canaries(data.task.losses), labels, units=units)
    kinds = data.class_numbers if data.units is None else data.class_numbers[data.units.first_rows]
    last = int(kinds.max()) if len(kinds) else -1
    classes = np.concatenate([kinds, last + 1 + inserted.coordinates])  # each canary has its own class
    state = practice.start(trainer, model, optimizer, source, classes)
    fit(trainer, state, callbacks=[observer])


def _canary_units(units: Units, count: int) -> Units:
    """So many units of `UNIT_ROWS` rows each, none of which has the key of one of ``units``."""
    free = np.setdiff1d(np.arange(len(units) + count, dtype=np.uint64), units.keys)[:count]
    rows = np.arange(UNIT_ROWS * count, dtype=units.rows.dtype)
    return dataclasses.replace(units, rows=rows, ends=UNIT_ROWS * np.arange(1, count + 1), keys=free)


@cache
def _with_canaries(losses: ExampleLosses) -> CanaryLosses:
    """Always the same value, so that what was checked of it stays known."""
    return CanaryLosses(losses)


def _initial_model(game: Game, coordinates: int) -> CanaryModel:
    """The model before the first step: always the same object, which the engine has to check once only."""
    key = (game.study, game.seed, coordinates)
    if key not in _MODELS:
        model = CanaryModel(game.study.model(game.data, game.seed), coordinates)
        if len(_MODELS) > 1:
            _MODELS.clear()
        _MODELS[key] = model, copy.deepcopy(model.state_dict())
    model, initial = _MODELS[key]
    model.load_state_dict(initial)
    return model


_MODELS: dict[tuple[Study, int, int], tuple[CanaryModel, dict[str, torch.Tensor]]] = {}


def play(game: Game, rows: IntArray, label: str) -> Played:
    """One training on the study's data; each canary, of the owner in ``rows``, is in by a fair coin."""
    source = SeededSource(game.seed).stream(label)
    included = uniforms(source.stream("coins"), len(rows)) < 0.5
    claimed = game.claimed.phases[0].terms
    present = np.flatnonzero(included)
    norms = GRADIENT_NORM * claimed.clipping_thresholds[rows[present]]
    inserted = Inserted(present, norms, np.full(len(present), FIRST))
    observer = _observer(claimed, rows, game.learning_rate)
    train_with(game, game.practice, game.data, inserted, rows[present], observer, source)
    return Played(included[None], observer.white[None], observer.black[None])


def _observer(claimed: Terms, rows: IntArray, learning_rate: float, baseline: float = 0.0) -> Observer:
    unit = claimed.expected_batch_size / (learning_rate * claimed.noise_scale)
    return Observer(claimed.sampling_rates[rows], claimed.noise_multipliers()[rows], unit, baseline)


# The order ---------------------------------------------------------------------------------------------------------


def play_order(game: Game, row: int, label: str) -> Played:
    """One training of accomplices alone, with a canary of the owner in ``row`` among them by a fair coin.

    The study's model has no part in it; one with a single weight stands in for it, in float64, in which accomplices
    add up to what they should.
    """
    source = SeededSource(game.seed).stream(label)
    included = bool(uniforms(source.stream("coins"), 1)[0] < 0.5)
    claimed = game.claimed.phases[0].terms
    practice = _with_public_owner(game.practice, float(game.practice.terms.clipping_thresholds[row]))
    scene = _scene(practice, row)
    count = len(scene.signs)
    norm = GRADIENT_NORM * float(claimed.clipping_thresholds[row])
    inserted = Inserted(
        np.zeros(count + 1, dtype=np.int64), norm * np.append(scene.signs, 1.0), np.append(np.zeros(count), scene.loss)
    )
    rows = np.append(np.full(count, len(game.claimed.table)), row)
    if not included:
        inserted, rows = inserted.take(np.arange(count)), rows[:-1]
    observer = _observer(claimed, np.array([row]), game.learning_rate, scene.baseline / claimed.noise_scale)
    study = dataclasses.replace(game.study, model=_single_weight, origin="a single weight")
    stand_in = dataclasses.replace(game, study=study)
    train_with(stand_in, practice, _without_examples(game.data), inserted, rows, observer, source)
    return Played(np.array([[included]]), observer.white[None], observer.black[None])


def _single_weight(_: StudyData, seed: int) -> nn.Module:
    return nn.Linear(1, 1, bias=False, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Scene:
    """Accomplices and a canary, arranged so that the canary's whole effect shows.

    Attributes:
        loss: The canary's, before or behind the accomplices.
        signs: Of the accomplices' gradients: the sign of what the canary does to their weights.
        baseline: Their weighted sum without the canary.
        effect: How far the canary moves the weighted sum, over its threshold. At most 1 with correct code.
    """

    loss: float
    signs: FloatArray
    baseline: float
    effect: float


def _scene(practice: Practice, row: int) -> Scene:
    """The more revealing of the two places that a canary can have, by the practice's own order and tail."""
    return max((_placed(practice, row, loss) for loss in (LAST, FIRST)), key=lambda scene: scene.effect)


def _placed(practice: Practice, row: int, loss: float) -> Scene:
    importance, threshold = practice.method.importance, float(practice.terms.clipping_thresholds[row])
    length = 0.0 if importance is None or importance.length is None else importance.length
    count = max(32, math.ceil(1.5 * length / threshold))  # a batch half as long again as the tail
    without, together = (_weights(practice, row, np.append(np.zeros(count), more)) for more in ([], [loss]))
    change = together[:count] - without
    signs = np.where(change < 0, -1.0, 1.0)
    baseline = float((without * signs).sum()) * threshold * (1 - MARGIN)
    return Scene(loss, signs, baseline, float(np.abs(change).sum() + together[-1]))


def _weights(practice: Practice, row: int, losses: FloatArray) -> FloatArray:
    """The weights of a batch of accomplices with loss 0 and, with another loss, a canary."""
    count = len(losses)
    candidates = Candidates(np.arange(count), np.zeros(count, dtype=np.int64), losses, np.ones(count))
    owners = np.where(losses == 0, len(practice.plan.table) - 1, row)
    tail = practice.method.tail(practice.plan.expected_threshold_sum())
    ranking = practice.method.order.ranking(candidates, SeededSource(0))
    return importance_weights(tail, practice.terms.thresholds_of(owners), ranking)


def _with_public_owner(practice: Practice, threshold: float) -> Practice:
    """One more owner, in the last row: without a limit, in every batch, clipped to ``threshold``."""
    plan, terms, table = practice.plan, practice.terms, practice.plan.table
    name = next(name for name in ("public", *map(str, range(len(table) + 1))) if name not in table.names)
    wider = dataclasses.replace(
        table,
        names=(*table.names, name),
        epsilons=np.append(table.epsilons, np.inf),
        deltas=np.append(table.deltas, 0.5),
        sizes=np.append(table.sizes, 0),
    )
    more = dataclasses.replace(
        terms,
        sampling_rates=np.append(terms.sampling_rates, 1.0),
        clipping_thresholds=np.append(terms.clipping_thresholds, threshold),
    )
    widened = dataclasses.replace(
        plan, table=wider, phases=(Phase(plan.steps, more),), spent=np.append(plan.spent, np.inf), count=None
    )
    plain = dataclasses.replace(practice.method, adjustment=None)  # a single weight has no classes
    return dataclasses.replace(practice, plan=widened, method=plain, shares=None)


def _without_examples(data: StudyData) -> StudyData:
    """No example at all, and a task of one output, which the single weight has."""
    none = np.zeros(0, dtype=np.int64)
    owners = dataclasses.replace(
        data.owners, table=dataclasses.replace(data.owners.table, sizes=0 * data.owners.table.sizes), assignment=none
    )
    nothing = torch.zeros(0, 1, dtype=torch.float64)
    examples, task = LabelledExamples(nothing, nothing), regression(["nothing"])
    units = (
        None if data.units is None else dataclasses.replace(data.units, rows=none, ends=none, keys=none.view(np.uint64))
    )
    return dataclasses.replace(data, owners=owners, examples=examples, task=task, train_groups=none, units=units)


# Many trainings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Task:
    """Some trainings of one kind: ``data``, ``one-run`` or ``order``."""

    game: Game
    kind: str
    rows: IntArray
    numbers: tuple[int, ...]


def play_task(task: Task) -> Played:
    """Carry out a task."""
    return Played.together([_play_number(task, number) for number in task.numbers])


def _play_number(task: Task, number: int) -> Played:
    label = f"{task.kind}/{number}"
    if task.kind == "order":
        games = [play_order(task.game, row, f"{label}/{row}") for row in task.rows.tolist()]
        return Played(*(np.concatenate([getattr(game, name) for game in games], axis=1) for name in _COLUMNS))
    return play(task.game, task.rows, label)


_COLUMNS = ("included", "white", "black")


def tasks_of(game: Game, runs: int, canaries: int, *, runs_at_once: int = 4) -> list[Task]:
    """All trainings of an audit: ``runs`` repeated ones of each kind, and one with ``canaries`` canaries per owner."""
    _validate.whole(12, runs=runs)
    _validate.whole(40, canaries=canaries)
    kinds = ["data"] if game.practice.method.importance is None else ["data", "order"]
    chunks = [tuple(range(start, min(start + runs_at_once, runs))) for start in range(0, runs, runs_at_once)]
    single = Task(game, "one-run", np.repeat(game.owners, canaries), (0,))
    return [single, *(Task(game, kind, game.owners, numbers) for kind in kinds for numbers in chunks)]


def play_all(tasks: Sequence[Task], workers: Workers = LOCAL) -> Iterator[tuple[Task, Played]]:
    """Carry out tasks in parallel, and hand them over as they finish."""
    names = [f"{task.kind} {task.numbers[0]}" for task in tasks]
    for index, outcome in run_all(play_task, tasks, names=names, workers=workers):
        if isinstance(outcome, Failure):
            raise InosgdError(f"an audited training failed: {outcome.task}: {outcome.error}")
        yield tasks[index], outcome


# Bounds ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What one view of the audit says about one owner.

    Attributes:
        owner: Its name.
        view: "white-box", "black-box", "one-run white-box", "one-run black-box" or "order".
        budget: The owner's epsilon.
        accounted: The accountant's upper bound.
        delta: At which delta.
        lower_bound: On epsilon, without assumptions.
        lower_bound_of_noise: On epsilon, if only the amount of noise is in doubt.
        rejected: Whether the claim is refuted.
        trials: On how many trials or bits it rests.
    """

    owner: str
    view: str
    budget: float
    accounted: float
    delta: float
    lower_bound: float
    lower_bound_of_noise: float
    rejected: bool
    trials: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self.__dict__, "budget": self.budget if math.isfinite(self.budget) else "inf"}


def findings(game: Game, played: dict[str, Played], confidence: float) -> list[Finding]:
    """What trainings of each kind say about every owner; all bounds hold together with ``confidence``."""
    _validate.open_unit(confidence=confidence)
    rows = game.owners.tolist()
    each = 1 - (1 - confidence) / bounds_of(len(rows), "order" in played)
    found = []
    for column, row in enumerate(rows):
        claim = game.claim(row)
        repeated, single = _column(played["data"], column), _block(played["one-run"], column, len(rows))
        found += [
            repeated_finding(claim, "white-box", repeated.included, repeated.white, each),
            repeated_finding(claim, "black-box", repeated.included, repeated.black, each),
            one_run_finding(claim, "one-run white-box", single.included, single.white, each),
            one_run_finding(claim, "one-run black-box", single.included, single.black, each),
        ]
        if "order" in played:
            order = _column(played["order"], column)
            found.append(repeated_finding(claim, "order", order.included, order.white, each))
    return found


def bounds_of(owners: int, order: bool) -> int:
    """Over how many bounds an audit's confidence is split.

    A repeated view has two for each owner, one from right guesses and one from both rates. A one-run view has one: all
    that is concluded from its number of right guesses is wrong only if that number is as rare as the confidence says.
    """
    return (2 * 2 + 2 + (2 if order else 0)) * owners


def repeated_finding(claim: Claim, view: str, included: BoolArray, scores: FloatArray, confidence: float) -> Finding:
    """From independent trainings: a third chooses the threshold, the others are counted."""
    first = len(scores) // 3
    threshold = best_threshold(scores[:first], included[:first])
    counts = Counts.at(threshold, scores[first:], included[first:])
    plain = epsilon_lower_bound(counts, claim.delta, confidence)
    of_noise = epsilon_within_family(
        claim.with_noise, lambda profile: rejects(profile, counts, confidence), claim.delta
    )
    rejected = (
        rejects(claim.profile, counts, confidence)
        or rates_reject(claim.profile, counts, confidence)
        or plain > claim.spent
    )
    return _finding(claim, view, plain, of_noise, rejected, len(scores) - first)


def one_run_finding(claim: Claim, view: str, included: BoolArray, scores: FloatArray, confidence: float) -> Finding:
    """From one training with many canaries: a quarter of them chooses how many are guessed."""
    calibrating = np.arange(len(scores)) < len(scores) // 4
    bound = one_run_bound(scores, included, calibrating, claim.delta, confidence)
    of_noise = epsilon_within_family(claim.with_noise, lambda profile: bound.rejects(profile, confidence), claim.delta)
    rejected = bound.rejects(claim.profile, confidence) or bound.epsilon > claim.spent
    return _finding(claim, view, bound.epsilon, of_noise, rejected, bound.bits)


def _finding(claim: Claim, view: str, plain: float, of_noise: float, rejected: bool, trials: int) -> Finding:
    return Finding(claim.name, view, claim.epsilon, claim.spent, claim.delta, plain, of_noise, rejected, trials)


def _column(played: Played, column: int) -> Played:
    return Played(played.included[:, column], played.white[:, column], played.black[:, column])


def _block(played: Played, block: int, blocks: int) -> Played:
    """The canaries of one owner in a single training."""
    size = played.included.shape[1] // blocks
    where = slice(block * size, (block + 1) * size)
    return Played(played.included[0, where], played.white[0, where], played.black[0, where])


def verdict(found: Sequence[Finding], confidence: float) -> str:
    """One sentence."""
    guilty = [each for each in found if each.rejected]
    if guilty:
        owners = ", ".join(dict.fromkeys(each.owner for each in guilty))
        views = ", ".join(dict.fromkeys(each.view for each in guilty))
        return f"REJECTED at {confidence:.0%} confidence: the claim for {owners} is refuted ({views})."
    largest = max(max(each.lower_bound, each.lower_bound_of_noise) / max(each.accounted, 1e-300) for each in found)
    return (
        f"Nothing is refuted at {confidence:.0%} confidence: every lower bound is below what is accounted for; the "
        f"closest comes to {largest:.0%} of it."
    )
