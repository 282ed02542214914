"""Losses and gradients of a batch, held against those of its parts: what no list of layers can know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.gradients.draws import HeldDraws
from inosgd.gradients.engine import Examples, check_losses, count_examples
from inosgd.gradients.inplace import out_of_place
from inosgd.gradients.recording import flatten, forward, quiet_modules, record_pass
from inosgd.gradients.rules.recorder import LayoutError
from inosgd.gradients.seen import Folds, Seen
from inosgd.gradients.task import Task
from inosgd.gradients.written import same_contents

_MANY_ALONE, _FEW_ALONE = (32, 8), (8, 2)
"""How many examples of a batch pass alone at most, and how many of these have their gradients taken."""

_SHAKE = 128.0
"""By how many unit roundoffs parameters are moved, to see how much of a difference roundings can make."""

_MOVES = 8
"""How many such moves are tried before what differs is refused."""

_ROUNDINGS = 64.0
"""By how many unit roundoffs of itself a number may differ in any case."""

_REPEATED = 2.0**-14
"""By how much of its size a loss may differ between two passes over the same batch, which mostly have the same bits."""

PERTURBATION = 0.1
"""How far parameters are moved, in units of an ordinary initialisation, to open what starts at zero."""

_GOLDEN = 0.6180339887498949


def check_values(task: Task, examples: Examples, *, recorded: bool, perturbed: bool, seed: int, seen: Seen) -> bool:
    """Compare a batch with its parts; False if too few of its losses and gradients are finite to tell.

    The batch passes whole, as it does in training. Its examples then pass in two halves and, up to 32 of them, alone,
    without the engine. What must agree:

    - the loss of every example, whatever it passes with, and in a second pass over the whole batch;
    - for each parameter, sum_i c_i g_i by the engine and by autograd in halves, with another c_i for every example;
    - the engine's norms, which may not be below those of the gradients of examples that pass alone;
    - the bits of all parameters and buffers, before and after;
    - the loss of every example, whether modules with ``inplace=True`` work in place or not.

    Two numbers agree if they differ by no more than 64 roundings of one of them, or than a change of all parameters by
    128 roundings makes of it, so that nothing is assumed about the scale of losses. All of it is done in the mode that
    is trained in, with what the model draws held fixed (`inosgd.gradients.draws`).

    Guarantee:
        The bits of the model and torch's generators are as before, unless the model itself changes them. What passes
        is independent on this batch in this state; nothing is said about others. A refusal depends on the data and has
        no noise: it is an answer outside the guarantee.

    Args:
        task: The model and its losses.
        examples: The batch.
        recorded: Whether gradients come from recorded passes; if not, only losses are compared.
        perturbed: Whether to compare at moved parameters as well, where branches that start at zero are open, and to
            see there that no loss has a derivative with respect to the input of another example.
        seed: Says which halves.
        seen: What the batch had is added; folds only if it could be compared.

    Raises:
        InvalidArgumentError: It says what differs and what to do about it.
    """
    draws, devices = HeldDraws(), [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), same_contents(task.model):
        comparison = _Comparison(task, examples, recorded, _MANY_ALONE if perturbed else _FEW_ALONE, seed)
        with draws:
            comparison = comparison.surveyed()
            first = comparison.first()
        with draws if draws.asked else nullcontext():  # without draws, its time is saved
            try:
                told = comparison.run(first)
                if told and perturbed:
                    comparison.run_moved()
            except InvalidArgumentError:
                comparison.check_repeated(first)  # if it is not repeatable, that is why it differs
                raise
            comparison.check_repeated(first)
    if told:
        seen.folds.add(first.folds)
    seen.calls |= first.calls
    seen.functions |= first.functions
    seen.constant |= first.constant
    seen.quiet = comparison.task.quiet
    return told


@contextmanager
def moved(parameters: Iterable[nn.Parameter], size: float, draw: int = 0) -> Iterator[None]:
    """Inside, parameters are moved at random, in place; afterwards they have the bits that they had before.

    Each entry moves away from zero, so that it keeps its sign, by up to ``size`` times its own magnitude or 1 /
    sqrt(number of inputs), whichever is larger; with a negative ``size`` towards zero. An entry that is zero moves
    either way.
    """
    kept = [(parameter, parameter.detach().clone()) for parameter in parameters]
    generator = np.random.default_rng(draw)  # torch's are held fixed
    try:
        with torch.no_grad():
            for parameter, values in kept:
                parameter.add_(size * _directions(values, generator))
        yield
    finally:
        with torch.no_grad():
            for parameter, values in kept:
                parameter.copy_(values)


def _directions(values: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    uniform = torch.from_numpy(np.asarray(generator.random(values.shape, dtype=np.float32))).to(values)
    either = torch.where(uniform * 64 % 1 < 0.5, -1.0, 1.0).to(values)
    signs = torch.where(values == 0, either, values.sign())
    return signs * (0.5 + uniform / 2) * values.abs().clamp_min(max(math.prod(values.shape[1:]), 1) ** -0.5)


@dataclass(frozen=True, eq=False)
class _Whole:
    """What a pass over the whole batch gave; ``total`` is the weighted sum, if passes are recorded."""

    losses: FloatArray
    norms: FloatArray
    coefficients: FloatArray
    total: torch.Tensor | None
    folds: Folds = ()
    calls: Set[tuple[str, int]] = frozenset()
    functions: bool = False
    constant: Set[str] = frozenset()


@dataclass(frozen=True, eq=False)
class _Comparison:
    """A batch and its parts, at the parameters as they are.

    Attributes:
        task: See `check_values`, like the others.
    """

    task: Task
    examples: Examples
    recorded: bool
    alone: tuple[int, int]
    seed: int

    def surveyed(self) -> _Comparison:
        """The same, with modules quiet that can be; without, if the model fails, as the first pass then tells."""
        if not self.recorded:
            return self
        try:
            return replace(self, task=replace(self.task, quiet=quiet_modules(self.task, self.examples)))
        except Exception:
            return self

    def first(self) -> _Whole:
        """The first pass, in which a model may fail that does not fail by itself."""
        try:
            return self.whole()
        except (InosgdError, TypeError, AttributeError):
            raise
        except Exception as error:
            if not self._passes_by_itself():
                raise
            if "use_reentrant" in str(error):
                raise InvalidArgumentError(
                    "model: a checkpoint gives no gradients of outputs; write use_reentrant=False in place of True"
                ) from error
            raise LayoutError(
                f"model: it fails where its layers are recorded and not by itself ({type(error).__name__}: {error}): "
                "it asks for other shapes or types than those of its examples; change that, or use ReferenceEngine"
            ) from error

    def _passes_by_itself(self) -> bool:
        try:
            with torch.enable_grad():
                _plain(self.task, pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, self.examples))
        except Exception:
            return False
        return True

    def run(self, whole: _Whole) -> bool:
        """Compare losses, sums and norms; False if too few of them are finite.

        Numbers that are within a few roundings of each other agree wherever the parameters stand. Others are held
        against what a tiny move of the parameters makes of them. Where a rectifier stands within roundings of its kink,
        its derivative is 0 in one pass and 1 in another, and a sum differs by what an example has there; a move shows
        how much that is, if it crosses the kink. So what differs is looked at again after more moves, up and down, and
        is refused if it is larger than what any of them makes of the losses, norms and sums.
        """
        try:
            return self._compared(whole, [])
        except InvalidArgumentError:  # nothing has been moved yet
            pass
        moves: list[_Whole] = []
        refusals: list[InvalidArgumentError] = []
        for draw in range(_MOVES):
            with moved(self.task.parameters.values(), (-1) ** draw * _SHAKE * self._roundoff, draw):
                moves.append(self.whole(whole.coefficients))
            try:
                told = self._compared(whole, moves)
            except InvalidArgumentError as error:
                refusals.append(error)
            else:
                if told or not refusals:
                    return told
        raise refusals[0]

    def _compared(self, whole: _Whole, moves: Sequence[_Whole]) -> bool:
        usable = whole.coefficients > 0
        for move in moves:
            usable = usable & np.isfinite(move.losses) & np.isfinite(move.norms)
        if usable.sum() < min(2, len(usable)):
            return False
        allowed = _allowed(whole.losses, [move.losses for move in moves], self._roundoff)
        self._check_in_place(whole, allowed)
        self._check_halves(whole, moves, usable, allowed)
        self._check_alone(whole, moves, usable, allowed)
        return True

    def run_moved(self) -> bool:
        """The same where branches that start at zero are open, and with derivatives with respect to inputs."""
        try:
            with moved(self.task.parameters.values(), PERTURBATION):
                told = self.run(self.whole())
                self._check_inputs()
        except InosgdError:
            raise
        except Exception:  # a model may allow no such parameters; as it is, it has been compared
            return False
        return told

    def check_repeated(self, first: _Whole) -> None:
        """The last pass over the batch must give the losses that the first gave."""
        last = self._losses()
        finite = np.isfinite(last)
        typical = np.median(np.abs(last[finite])) if finite.any() else 0.0
        if not _agree(first.losses, last, _REPEATED * (np.abs(last) + typical)).all():
            raise InvalidArgumentError(
                "losses: two passes over the same examples gave other losses, so that what is measured is not what is "
                "summed: the model or its losses keep something from one pass to the next, or draw random numbers that "
                "torch.manual_seed does not govern; keep nothing, and draw by torch"
            )

    def _check_inputs(self) -> None:
        """No loss of one half may have a derivative with respect to an input of the other."""
        leaves = [leaf for leaf in pytree.tree_leaves(self.examples) if isinstance(leaf, torch.Tensor)]
        if not any(leaf.is_floating_point() for leaf in leaves):
            return
        rows = np.flatnonzero(np.isfinite(self._losses()))
        chosen = torch.from_numpy(np.isin(rows, _halves(rows, self.seed)[0])).to(self.task.device)
        inputs = pytree.tree_map_only(torch.Tensor, _leaf, _take(self.examples, rows))
        floats = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        with torch.enable_grad():  # copies, because a model may write to its inputs
            losses = _plain(self.task, pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, inputs))
            found = _derivatives(losses, floats, chosen.to(losses))
        for part in found:
            here, there = part[chosen.to(part.device)], part[~chosen.to(part.device)]
            if there.abs().sum() > 1e-6 * here.abs().sum():
                raise InvalidArgumentError(
                    "the loss of one example depends on the input of another: the model or its losses mix the examples "
                    "of a batch, so that no clipping bounds what one of them does; remove the operation that mixes them"
                )

    @property
    def _roundoff(self) -> float:
        return max(torch.finfo(parameter.dtype).eps for parameter in self.task.parameters.values())

    def whole(self, coefficients: FloatArray | None = None) -> _Whole:
        """A pass as training does it, and a sum with these coefficients, or with some that suit its norms."""
        if not self.recorded:
            losses = self._losses()
            return _Whole(losses, np.zeros(len(losses)), np.isfinite(losses).astype(np.float64), None)
        page = record_pass(replace(self.task, seen=None), self.examples)
        measured = page.measure()
        if coefficients is None:
            usable = np.isfinite(measured.losses) & np.isfinite(measured.grad_norms)
            coefficients = _different(measured.grad_norms, usable, float(np.finfo(np.float32).tiny) ** 0.5)
        total = page.weighted_sum(coefficients)
        had = page.folds, page.calls, page.functions, page.constant
        return _Whole(measured.losses, measured.grad_norms, coefficients, total, *had)

    def _losses(self) -> FloatArray:
        """The losses of a pass as training does it."""
        if self.recorded:
            recorder = self.task.recorder(count_examples(self.examples))
            return _array(forward(self.task, self.examples, recorder))
        with torch.no_grad():
            return _array(_plain(self.task, self.examples))

    def _check_in_place(self, whole: _Whole, allowed: FloatArray) -> None:
        """The model as it is must have the losses that it has with everything out of place."""
        if not self.task.inplace:
            return
        copies = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, self.examples)
        with torch.enable_grad():  # so that autograd refuses to overwrite parameters
            losses = check_losses(self.task.losses(self.task.model, copies), count_examples(copies))
        if not _agree(whole.losses, _array(losses), allowed).all():
            paths = [path for path, module in self.task.model.named_modules() if module in self.task.inplace]
            raise InvalidArgumentError(
                f"modules {paths}: with inplace=True they overwrite a value that the model uses again, so that it "
                "computes something else than with inplace=False; set inplace=False, or use the overwritten value once"
            )

    def _check_halves(self, whole: _Whole, moves: Sequence[_Whole], usable: BoolArray, allowed: FloatArray) -> None:
        parameters = list(self.task.parameters.values())
        total = flatten([None] * len(parameters), parameters)
        for rows in _halves(np.flatnonzero(usable), self.seed):
            with torch.set_grad_enabled(self.recorded):
                losses = self._part(rows)
                self._check_losses(rows, whole, losses, allowed)
            if self.recorded:
                scales = torch.from_numpy(whole.coefficients[rows]).to(losses)
                total += flatten(_derivatives(losses, parameters, scales), parameters)
        moved_totals = [move.total for move in moves if move.total is not None]
        if whole.total is not None:
            size = float(np.linalg.norm(whole.coefficients[usable] * whole.norms[usable]))
            self._check_sums(whole.total, moved_totals, total, size)

    def _check_alone(self, whole: _Whole, moves: Sequence[_Whole], usable: BoolArray, allowed: FloatArray) -> None:
        parameters = list(self.task.parameters.values())
        lowest = whole.norms - 2 * _allowed(whole.norms, [move.norms for move in moves], self._roundoff)
        for place, row in enumerate(_sample(whole.losses, usable, self.alone[0])):
            with_gradient = self.recorded and usable[row] and place < self.alone[1]
            with torch.set_grad_enabled(bool(with_gradient)):
                losses = self._part(np.array([row]))
                self._check_losses(np.array([row]), whole, losses, allowed)
            if with_gradient:
                parts = _derivatives(losses, parameters, torch.ones_like(losses))
                norm = float(torch.stack([part.double().norm() for part in parts]).norm())
                _check_norm(norm, whole.norms[row], 2 * whole.norms[row] - lowest[row])

    def _part(self, rows: IntArray) -> torch.Tensor:
        """The losses of some examples of the batch."""
        try:
            return _plain(self.task, _take(self.examples, rows))
        except InosgdError:
            raise
        except Exception as error:
            raise InvalidArgumentError(
                f"model: {len(rows)} of {count_examples(self.examples)} examples that pass together do not pass "
                f"without the others ({type(error).__name__}: {error}); every example has to pass alone"
            ) from error

    def _check_losses(self, rows: IntArray, whole: _Whole, given: torch.Tensor, allowed: FloatArray) -> None:
        if _agree(whole.losses[rows], _array(given), allowed[rows]).all():
            return
        raise InvalidArgumentError(
            "losses: an example has another loss in a batch than alone: the model or its losses mix the examples of a "
            "batch, so that no clipping bounds what one of them does; compute each loss from its own example (weights "
            "by class must be constants)"
        )

    def _check_sums(
        self, total: torch.Tensor, moves: Sequence[torch.Tensor], expected: torch.Tensor, size: float
    ) -> None:
        sizes = [parameter.numel() for parameter in self.task.parameters.values()]
        parts = zip(*[torch.split(each, sizes) for each in (total, expected, *moves)], strict=True)
        for name, (given, wanted, *others) in zip(self.task.parameters, parts, strict=True):
            change = max((float((other - given).norm()) for other in others), default=0.0)
            allowed = 4 * change + _ROUNDINGS * self._roundoff * size
            if not (given - wanted).norm() <= allowed:
                raise LayoutError(
                    f"parameter {name!r}: its per-example gradient is not what autograd gives; the parameter is used "
                    "outside a call of its module, or the examples are mixed or not in the first dimension: change "
                    "that, or use ReferenceEngine"
                )


def _check_norm(norm: float, measured: float, highest: float) -> None:
    if not norm <= highest:
        raise LayoutError(
            f"the engine takes an example's gradient of norm {norm:g} for one of norm {measured:g}: it would be "
            "clipped too little; use ReferenceEngine"
        )


def _array(losses: torch.Tensor) -> FloatArray:
    values: FloatArray = losses.detach().double().cpu().numpy()
    return values


def _plain(task: Task, examples: Examples) -> torch.Tensor:
    """The losses of one pass without the engine."""
    with out_of_place(task.inplace):
        return check_losses(task.losses(task.model, examples), count_examples(examples))


def _derivatives(
    losses: torch.Tensor, wanted: list[torch.Tensor] | list[nn.Parameter], scales: torch.Tensor
) -> list[torch.Tensor]:
    """Of the losses' sum with these scales; zeros if nothing in it has a derivative."""
    if not losses.requires_grad:
        return [torch.zeros_like(each) for each in wanted]
    return list(torch.autograd.grad(losses, wanted, scales, allow_unused=True, materialize_grads=True))


def _allowed(values: FloatArray, moves: Sequence[FloatArray], roundoff: float) -> FloatArray:
    """How far each of the values may be from what it is compared to; NaN where it is not finite."""
    with np.errstate(invalid="ignore"):
        change: FloatArray = np.max([np.abs(move - values) for move in moves] or [0 * values], axis=0)
    finite = change[np.isfinite(change)]
    typical = np.quantile(finite, 0.9) if len(finite) else 0.0
    allowed: FloatArray = change + typical + _ROUNDINGS * roundoff * np.abs(values)
    return allowed


def _agree(one: FloatArray, other: FloatArray, allowed: FloatArray) -> BoolArray:
    neither = ~np.isfinite(one) & ~np.isfinite(other)
    with np.errstate(invalid="ignore"):
        return neither | (np.abs(one - other) <= allowed)


def _different(norms: FloatArray, usable: BoolArray, smallest: float) -> FloatArray:
    """Coefficients that bring no gradient above the typical one, far from those next to them; 0 for the others."""
    typical = np.median(norms[usable]) if usable.any() else 0.0
    scales = 0.5 + np.arange(len(norms)) * _GOLDEN % 1
    return np.where(usable, scales / np.fmax(np.fmax(norms, typical), smallest), 0.0)


def _halves(rows: IntArray, seed: int) -> list[IntArray]:
    """The rows in two parts, each in the order that it came in; one part if there is one row."""
    mixed = np.random.default_rng(seed).permutation(rows)
    parts = (np.sort(mixed[: len(rows) // 2]), np.sort(mixed[len(rows) // 2 :]))
    return [part for part in parts if len(part)]


def _sample(losses: FloatArray, usable: BoolArray, most: int) -> list[int]:
    """Rows that pass alone: extremes and ends, all or some in between, and one or two without a finite loss."""
    rows = np.flatnonzero(usable)
    ordered = rows[np.argsort(losses[rows], kind="stable")]
    spread = rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)]
    chosen = [ordered[-1], ordered[0], rows[0], rows[-1], *np.random.default_rng(0).permutation(spread)]
    without = np.flatnonzero(~np.isfinite(losses))[:2]
    return [int(row) for row in [*list(dict.fromkeys(chosen))[:most], *without]]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    detached = tensor.detach()
    return detached.requires_grad_() if detached.is_floating_point() else detached


def _take(examples: Examples, rows: IntArray) -> Examples:
    index = torch.from_numpy(rows)
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf[index.to(leaf.device)], examples)
