"""Training: one readable step, and a loop around it.

A `Trainer` is frozen configuration. A `TrainingState` is what changes: the model, the optimizer, the ledger and
the random streams. `train_step` is Algorithm 1 of the paper; DP-SGD and IDP-SGD are the same function with
another plan and no tail.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler

from inosgd import _validate
from inosgd._arrays import IntArray
from inosgd.augmentation import Augmentation
from inosgd.averaging import RunningAverage
from inosgd.class_shares import ClassShares
from inosgd.counting import Labels, count_classes, counted_shares, take_counts
from inosgd.distributed import ALONE, Peers
from inosgd.errors import InvalidArgumentError
from inosgd.examples import ExampleStore, as_store, refuse_mixing
from inosgd.gradients import (
    BookkeepingEngine,
    ExampleLosses,
    Examples,
    GradientEngine,
    OffsetLosses,
    trainable_parameters,
)
from inosgd.gradients.units import UnitBatch, gradients_on, unit_losses
from inosgd.importance import importance_weights
from inosgd.ledger.ledger import Ledger
from inosgd.masks import torch_seeded_by
from inosgd.mechanism import BoundedSum, release
from inosgd.method import Method
from inosgd.modes import evaluating
from inosgd.optimizers import tell_noise_variance
from inosgd.order import Candidates
from inosgd.owners import EXAMPLE, Owners
from inosgd.plan import Plan, Terms
from inosgd.randomness import RandomSource, mixed_words
from inosgd.rounding import Room
from inosgd.sampling import PoissonSampler
from inosgd.streams import Streams
from inosgd.units import Units

LEARNING_RATE_UNITS = ("batch", "noise")
"""What a noisy sum is divided by for the optimizer: b, the expected batch size, or sigma, the noise scale."""


@dataclass(frozen=True)
class Trainer:
    """Everything about a training that does not change while it runs.

    Attributes:
        plan: Rates, thresholds and noise for every step.
        owners: Whose example each row of ``examples`` is; with ``units``, whose each unit is (`Units.owned_by`).
        examples: A tree of tensors, a ``Dataset``, or an `ExampleStore`.
        losses: One loss per example, from a model and a batch; for a method with an adjustment an
            `inosgd.gradients.OffsetLosses`, such as `inosgd.supervised` makes.
        method: How a batch becomes a weighted sum.
        engine: How per-example gradients are computed.
        peers: The processes that share the work; see `inosgd.distributed`.
        shares: For a method with an adjustment, declared class shares; public.
        labels: For a plan that counts classes (`inosgd.counting`), the class of each example.
        learning_rate_unit: With ``batch`` the optimizer gets the noisy sum over b, the usual mean gradient. With
            ``noise`` it gets the noisy sum over sigma: a learning rate eta is then lr = eta b / sigma in the usual
            unit, at every step by the terms of that step, and moves each parameter by noise of standard deviation eta
            whatever the plan. It needs noise, and `torch.optim.SGD`, whose step is linear in the gradient; its weight
            decay w shrinks parameters by eta w. Both are functions of what was released and of the plan.
        units: Which rows of ``examples`` are one unit of privacy, such as all visits of a patient; None for each row.
        augmentation: Copies of each row that stand for it, as rows of its unit. One of another class is tried on the
            first rows, and refused if it reads other rows.
    """

    plan: Plan
    owners: Owners
    examples: Any
    losses: ExampleLosses
    method: Method
    engine: GradientEngine = field(default_factory=BookkeepingEngine)
    peers: Peers = ALONE
    shares: ClassShares | None = None
    labels: Labels | None = None
    learning_rate_unit: str = "batch"
    units: Units | None = None
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        _validate.one_of(LEARNING_RATE_UNITS, learning_rate_unit=self.learning_rate_unit)
        if self.learning_rate_unit == "noise" and not all(phase.terms.noise_scale > 0 for phase in self.plan.phases):
            raise InvalidArgumentError(
                "learning_rate_unit='noise': the plan has steps without noise, which would be divided by 0; choose "
                "'batch', or plan with noise"
            )
        _check_losses(self.losses)
        store = as_store(self.examples)
        if self.augmentation is not None and self.units is None:
            object.__setattr__(self, "units", Units.one_each(len(store)))
        _check_units(self.units, store, self.owners)
        _check_augmentation(self.augmentation, store)
        if self.plan.table != self.owners.table:
            raise InvalidArgumentError(
                "plan: it was made for other owners, budgets or sizes than `owners` holds; plan again for owners.table"
            )
        object.__setattr__(self, "examples", store)
        _check_adjustable(self)

    def losses_under(self, terms: Terms, shares: ClassShares | None) -> ExampleLosses:
        """The losses of a step under ``terms``: with the method's adjustment by ``shares``, if it has one."""
        adjustment, losses = self.method.adjustment, self.losses
        if adjustment is not None and shares is not None and isinstance(losses, OffsetLosses):
            losses = losses.with_offsets(adjustment.offsets(terms, self.owners.table, shares))
        return losses if self.units is None else unit_losses(losses, self.units.reduction)

    def take(self, indices: IntArray, rows: RandomSource) -> Examples:
        """The examples at ``indices``; with units, the rows that a step takes of the units at ``indices``.

        One word is drawn from ``rows`` where there are units, whatever ``indices`` are.
        """
        if self.units is None:
            return self.store.take(indices)
        return UnitBatch.of(self.units.draw(indices, rows.words(1)[0]), self.store.take, self.augmentation)

    @property
    def store(self) -> ExampleStore:
        """The examples, as a store."""
        store: ExampleStore = self.examples
        return store


class Under(NamedTuple):
    """What steps of a trainer under the same terms have in common: how they sample, and their losses."""

    trainer: Trainer
    terms: Terms
    sampler: PoissonSampler
    losses: ExampleLosses


@dataclass
class TrainingState:
    """Everything about a training that changes while it runs.

    ``also`` names whatever else has a ``state_dict`` and changes with the steps: checkpoints keep it too. A
    `RunningAverage` that is named ``average`` takes in every step, and a scheduler of torch that is named ``schedule``
    (`inosgd.schedules`) moves on with it. ``shares`` are the class shares that were declared or counted.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ledger: Ledger
    streams: Streams
    step: int = 0
    also: Mapping[str, Any] = field(default_factory=dict)
    shares: ClassShares | None = None
    under: Under | None = None

    def __repr__(self) -> str:
        """Where it stands, in one line."""
        parts = type(self.model).__name__, type(self.optimizer).__name__
        return f"TrainingState(step={self.step}, model={parts[0]}, optimizer={parts[1]})"

    @property
    def average(self) -> RunningAverage | None:
        """The average of the iterates, if one is kept."""
        found = self.also.get("average")
        return found if isinstance(found, RunningAverage) else None

    @property
    def schedule(self) -> LRScheduler | None:
        """The schedule of learning rates, if there is one."""
        found = self.also.get("schedule")
        return found if isinstance(found, LRScheduler) else None

    @contextmanager
    def result(self) -> Iterator[nn.Module]:
        """Inside, the model is what this training results in: the average of its iterates if one is kept."""
        with nullcontext(self.model) if self.average is None else self.average.in_place_of(self.model) as model:
            yield model

    @contextmanager
    def unmoved_by_failure(self) -> Iterator[None]:
        """If the block raises, the random streams stand where they stood before it, if they can be saved.

        Who catches the error and tries again then meets the same batch. With a new one, batches that raise would
        be rejected, and what is left is not Poisson sampling.
        """
        before = self.streams.state() if self.streams.savable else None
        try:
            yield
        except BaseException:
            if before is not None:
                self.streams = Streams.from_state(before)
            raise

    @classmethod
    def start(
        cls,
        trainer: Trainer,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        source: RandomSource,
        ledger: Ledger | None = None,
        also: Mapping[str, Any] | None = None,
    ) -> Self:
        """The state before the first step; without a ``ledger``, a new one in memory.

        If the plan counts classes and the ledger has no count yet, they are counted here; see `inosgd.counting`.

        On many processes all call it, each with the same arguments, but for a ledger on disk, which only the first has.

        Raises:
            InvalidArgumentError: In every process, if plan, owners, model, optimizer or source are not the same in all.
        """
        ledger = Ledger.for_plan(trainer.plan) if ledger is None else ledger
        if ledger.table != trainer.plan.table:
            raise InvalidArgumentError("ledger: it keeps other owners or budgets than the plan; open one for this plan")
        _check_whole(model)
        _check_precision(model)
        _check_optimizer(optimizer, model)
        _check_linear(trainer, optimizer)
        state = cls(model, optimizer, ledger, Streams.of(source), also=also or {})
        _check_same_everywhere(trainer, state)
        _check_adjustable_outputs(trainer, model)
        state.shares = _shares(trainer, ledger, source)
        return state


@dataclass(frozen=True)
class StepDiagnostics:
    """What happened in a step. Sensitive: computed from the batch without noise, so never publish it."""

    batch_size: int
    not_finite: int


def train_step(trainer: Trainer, state: TrainingState) -> StepDiagnostics:
    """One step: sample, measure, order, weight, clip, sum, record, release, update.

    Guarantee:
        For each unit of owner n (each example, unless the trainer has units), what the step makes public (the new
        parameters) is a sampled Gaussian mechanism with rate q_n and noise multiplier sigma / C_n of the plan's terms.
        Sums are shrunk by what their roundings may add (`inosgd.rounding`) and released on a grid (`inosgd.grid`). The
        step is in the ledger before it is released; if the ledger refuses it, nothing of it leaves this function.
        What is charged is what was bounded: the ledger refuses a sum whose sensitivity exceeds the thresholds it
        charges for.

    If anything raises before the step is recorded (the model, its loss, an engine, the ledger), parameters, optimizer,
    random streams, ledger and step are as before. If the optimizer raises, the step has been charged for: go on from
    a checkpoint.

    On many processes (``trainer.peers``) all take the step together, each on its share of the batch, and the first
    writes the ledger; all of this holds for them as one, see `inosgd.distributed`.
    """
    plan, method, peers, table = trainer.plan, trainer.method, trainer.peers, trainer.owners.table
    terms, tail = plan.at(state.step), method.tail(plan.expected_threshold_sum(state.step))
    room = Room.of(terms, table.sizes, _precision(state.model), peers.size)
    with state.unmoved_by_failure():
        streams, drawn_with, under = state.streams, state.streams.fingerprint(), _under(trainer, state, terms)
        indices = under.sampler.draw(streams.sampling)
        rows = trainer.owners.of(indices)
        thresholds = terms.thresholds_of(rows)
        with peers.batch(indices, drawn_with) as batch, torch_seeded_by(streams.masks, peers.rank) as drew:
            examples = trainer.take(indices[batch.mine], streams.rows)  # in one process: all of them
            with gradients_on(trainer.engine, state.model, under.losses, examples) as gradients:
                measured = batch.gather(gradients.measure())
                candidates = Candidates(indices, table.privacy_ranks[rows], measured.losses, measured.grad_norms)
                ranking = method.order.ranking(candidates, streams.order)
                weights = importance_weights(tail, thresholds, ranking)
                factors = method.clipping.factors(measured.grad_norms, thresholds)
                summed = gradients.weighted_sum((weights * factors)[batch.mine], room.error)
            del gradients, examples  # what they hold in memory is not needed for the release
            part = BoundedSum(summed, terms.clipping_thresholds)
            with batch.summing(part.value, drew) as used:  # no process has the sum before the first has recorded
                state.ledger.record(state.step, terms, sensitivity=part.sensitivity, streams=used)
            total = replace(part, value=room.leave(batch.total))
    noisy = release(total, terms.noise_scale, streams.noise)  # public from here on
    divisor = terms.noise_scale if trainer.learning_rate_unit == "noise" else terms.expected_batch_size
    tell_noise_variance(state.optimizer, (terms.noise_scale / divisor) ** 2)
    apply_update(state.model, state.optimizer, noisy / divisor)
    if state.average is not None:
        state.average.update(state.model)
    if state.schedule is not None:
        state.schedule.step()
    state.step += 1
    return StepDiagnostics(len(indices), int(measured.not_finite.sum()))


def apply_update(model: nn.Module, optimizer: torch.optim.Optimizer, gradient: torch.Tensor) -> None:
    """Let any torch optimizer take a step along a flat gradient; no ``.grad`` is left behind."""
    parameters = list(trainable_parameters(model).values())
    pieces = torch.split(gradient, [parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view_as(parameter).to(parameter.dtype)
    try:
        optimizer.step()
    finally:
        for parameter in parameters:
            parameter.grad = None


Callback = Callable[[TrainingState, StepDiagnostics], None]
"""Called after every step."""


def every(steps: int, action: Callable[[TrainingState], None]) -> Callback:
    """A callback that acts after each ``steps``-th step."""
    _validate.whole(1, steps=steps)

    def callback(state: TrainingState, _: StepDiagnostics) -> None:
        if state.step % steps == 0:
            action(state)

    return callback


def fit(
    trainer: Trainer,
    state: TrainingState,
    *,
    steps: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainingState:
    """Take ``steps`` steps, by default all that the plan has left.

    Raises:
        BudgetExceededError: Before the step that would pass a budget; the steps before it stand.
    """
    remaining = trainer.plan.steps - state.step
    count = remaining if steps is None else steps
    _validate.whole(0, steps=count)
    if count > remaining:
        raise _validate.fail("steps", steps, f"the plan has {remaining} left; plan again for more")
    for _ in range(count):
        diagnostics = train_step(trainer, state)
        for callback in callbacks:
            callback(state, diagnostics)
    return state


def _check_same_everywhere(trainer: Trainer, state: TrainingState) -> None:
    """Raise in every process unless all are about to do the same: what they sum would not be one batch's sum."""
    if trainer.peers.size == 1:
        return
    trainer.peers.check_same(
        versions=(torch.__version__, np.__version__),
        plan=[phase.to_json() for phase in trainer.plan.charges],
        budgets=trainer.plan.table.to_json(),
        owners=trainer.owners.assignment.tobytes(),
        examples=len(trainer.store),
        units=units_digest(trainer.units),
        augmentation=trainer.augmentation,
        method=trainer.method.to_json(),
        shares=None if trainer.shares is None else trainer.shares.to_json(),
        labels=None if trainer.labels is None else np.asarray(trainer.labels.numbers, dtype=np.int64).tobytes(),
        engine=type(trainer.engine).__name__,
        optimizer=state.optimizer,
        learning_rate_unit=trainer.learning_rate_unit,
        averaging=None if state.average is None else (state.average.averaging, state.average.steps),
        parameters=model_digest(state.model),
        streams=state.streams.fingerprint(),
    )


def units_digest(units: Units | None) -> str | None:
    """A checksum of which rows are in which unit, and of how they are drawn; None without units."""
    if units is None:
        return None
    digest = hashlib.sha256(f"{units.name} {units.max_rows} {units.reduction} ".encode())
    for part in (units.rows, units.ends, units.keys):
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def model_digest(model: nn.Module) -> str:
    """The SHA-256 of everything in the model's state, by name: equal for equal bits."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _precision(model: nn.Module) -> torch.dtype:
    """The less precise of the types of the trained parameters."""
    types = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    return torch.float64 if types == {torch.float64} else torch.float32


def _check_whole(model: nn.Module) -> None:
    """Raise if a wrapper gathers or sums gradients by itself, or if parameters are in pieces on several processes."""
    for path, module in model.named_modules():
        wrapper = next((each.__name__ for each in type(module).__mro__ if each.__name__ in _WRAPPERS), None)
        if wrapper is not None:
            raise InvalidArgumentError(
                f"model: module {path or 'model'!r} is wrapped by {wrapper}, which sums gradients over examples and "
                "processes before any of them is clipped; give the module inside, and share the work by peers"
            )
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "device_mesh"):
            raise InvalidArgumentError(
                f"model: parameter {name!r} is distributed in pieces ({type(parameter).__name__}), so that no process "
                "has the norm of an example's whole gradient, by which it is clipped; give a model that fits into one "
                "process, such as a frozen one with small adapters, and share the work by peers"
            )


_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
"""By name, because importing them takes long."""


def _check_precision(model: nn.Module) -> None:
    """Half precision clips a gradient to 1.003 C: refuse it rather than widen every margin."""
    for name, parameter in trainable_parameters(model).items():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise InvalidArgumentError(
                f"model: parameter {name!r} is {parameter.dtype}; train in float32 or float64, so that clipping holds"
            )


def _under(trainer: Trainer, state: TrainingState, terms: Terms) -> Under:
    """Made once for all steps of a trainer under the same terms."""
    known = state.under
    if known is not None and known.trainer is trainer and known.terms is terms:
        return known
    sampler = PoissonSampler(terms.sampling_rates, trainer.owners.assignment)
    state.under = Under(trainer, terms, sampler, trainer.losses_under(terms, state.shares))
    return state.under


def _check_losses(losses: object) -> None:
    """Raise if it is a loss of outputs and targets, as torch has them, and not one of a model and a batch."""
    if isinstance(losses, nn.Module) or getattr(losses, "__module__", None) == functional.__name__:
        name = getattr(losses, "__name__", type(losses).__name__)
        raise InvalidArgumentError(f"losses: {name} knows no model; give supervised({name})")


def _check_units(units: Units | None, store: ExampleStore, owners: Owners) -> None:
    """Raise unless every row has a unit and every unit an owner, and budgets protect what units are."""
    if units is None:
        _validate.same_length(examples=store, owners=owners)
    elif units.row_count != len(store):
        raise InvalidArgumentError(
            f"units: they have {units.row_count} rows, and there are {len(store)} examples; give the unit of each row"
        )
    else:
        _validate.same_length(units=units, owners=owners)
    protected = EXAMPLE if units is None else units.name
    if owners.table.unit != protected:
        raise InvalidArgumentError(
            f"owners: their budgets protect each {owners.table.unit}, and a training on these examples protects each "
            f"{protected}; give the units that the owners were made with, owners = units.owned_by(...)"
        )


def _check_augmentation(augmentation: Augmentation | None, store: ExampleStore) -> None:
    """Raise if an augmentation of another class than ours makes copies of more than a row and its word."""
    if augmentation is None or type(augmentation) is Augmentation:
        return

    def changed(rows: IntArray) -> Examples:
        return augmentation(store.take(rows), mixed_words(rows, np.uint64(0)))

    refuse_mixing(changed, len(store), "augmentation")


def _check_adjustable(trainer: Trainer) -> None:
    """Raise unless a method with an adjustment has what it needs."""
    _check_labels(trainer)
    if trainer.method.adjustment is None:
        return
    if trainer.shares is None and trainer.plan.count is None:
        raise InvalidArgumentError(
            "shares=None: the method adjusts its loss by class shares; declare them (ClassShares.declared), count them "
            "under the budgets (PlanConfig.counting), or choose a method without an adjustment"
        )
    if not isinstance(trainer.losses, OffsetLosses):
        raise InvalidArgumentError(
            "losses: the method adjusts the logits of classes, and these losses take no offsets; use "
            "supervised(cross_entropy), or give them a method with_offsets"
        )
    trainer.losses_under(trainer.plan.at(0), trainer.shares)


def _check_labels(trainer: Trainer) -> None:
    """Raise before anything is charged if what a plan counts is not what the labels are of."""
    labels, shares, config = trainer.labels, trainer.shares, trainer.plan.config
    if labels is None or trainer.plan.count is None:
        return
    planned = None if config is None or config.counting is None else config.counting.classes
    if planned not in (None, len(labels.classes)):
        raise _validate.fail("labels.classes", labels.classes, f"the plan counts {planned} classes; plan again")
    if shares is not None and shares.classes != labels.classes:
        raise _validate.fail(
            "labels.classes", labels.classes, f"shares are declared for {shares.classes}; give the same"
        )


def _shares(trainer: Trainer, ledger: Ledger, source: RandomSource) -> ClassShares | None:
    """Declared shares, and counted ones for other owners; they are counted now if they were not before."""
    if trainer.plan.count is None:
        return trainer.shares
    if trainer.labels is None:
        raise InvalidArgumentError("labels=None: the plan counts classes; give the class of each example")
    peers, labels = trainer.peers, trainer.labels
    with peers.together():  # the first process alone counts; a second count would be a second release
        if peers.first:
            count_classes(ledger, trainer.plan, trainer.owners, labels, source, trainer.units)
    counts = peers.from_first(b"" if ledger.history.counts is None else ledger.history.counts.tobytes())
    if not peers.first:
        take_counts(ledger, trainer.plan, np.frombuffer(counts).reshape(-1, len(labels.classes)))
    counted = counted_shares(ledger, labels.classes)
    return counted if trainer.shares is None else trainer.shares.and_those_of(counted)


def _check_adjustable_outputs(trainer: Trainer, model: nn.Module) -> None:
    """Raise if the model has no logit for each class that is about to be counted: nothing is charged for yet."""
    losses = trainer.losses
    if trainer.plan.count is None or trainer.labels is None or not isinstance(losses, OffsetLosses):
        return
    adjusted = losses.with_offsets(np.zeros(len(trainer.labels.classes)))
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        adjusted(model, trainer.store.take(np.zeros(1, dtype=np.int64)))


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise if it would train another model, or if a step evaluates the loss again: budgets would be spent first."""
    its = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if its - set(map(id, model.parameters())) or not its & set(map(id, trainable_parameters(model).values())):
        raise InvalidArgumentError(
            "optimizer: its parameters are not those of the model; make it from model.parameters(), after whatever "
            "replaces layers or copies the model, such as replace_batchnorm"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidArgumentError(
            f"optimizer: {type(optimizer).__name__} evaluates the loss several times in a step, each of which would be "
            "a release of its own; give an optimizer that takes one gradient, such as torch.optim.SGD or Adam"
        )


def _check_linear(trainer: Trainer, optimizer: torch.optim.Optimizer) -> None:
    """Learning rates in noise units mean something only where a step is linear in the gradient."""
    if trainer.learning_rate_unit == "noise" and type(optimizer) is not torch.optim.SGD:
        raise InvalidArgumentError(
            f"optimizer: {type(optimizer).__name__} rescales gradients, so a learning rate in noise units means "
            "nothing to it; give torch.optim.SGD, or learning_rate_unit='batch'"
        )
