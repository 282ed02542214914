"""What is checked of models and losses, and when: structure at every batch, values at batches 1, 2, 4, 8, ...

A model whose modules, modes, hooks, trainable parameters or buffers are other ones than before is a model in another
state, and is checked like a new one. A new one that differs from an earlier one in nothing but numbers
(`inosgd.gradients.kinds`) is checked like the earlier one after some steps: batches are counted on.
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.engine import ExampleLosses, Examples, count_examples
from inosgd.gradients.inplace import can_run_out_of_place, overwrites
from inosgd.gradients.kinds import kind_of
from inosgd.gradients.recording import take
from inosgd.gradients.rules.recorder import READINGS, LayoutError, Reading
from inosgd.gradients.seen import Seen
from inosgd.gradients.task import Task
from inosgd.gradients.values import check_values

State = tuple[object, ...]
"""Everything about a model's structure that decides whether it may be trained."""

_SETTINGS = ("inplace", "track_running_stats", "max_norm", "scale_grad_by_freq")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_LARGER = 1.25
"""By what factor a batch must be larger than all that were checked to be checked out of turn."""

_FEWEST = 2
"""How many rows are checked at least."""

_MOST_STATES = 16
"""For how many states of a model the checks that were made are remembered."""


@dataclass
class Checks:
    """The checks of one model with one kind of losses in one state.

    Attributes:
        recorded: See `inosgd.gradients.values.check_values`.
        batches: How many batches there were, checked or not.
        largest: How many examples the largest batch had whose values were checked.
        waiting: Whether values are to be checked as soon as a batch allows it.
        seen: What the batches had that were checked.
        reading: Where examples are taken to be: the first of `READINGS` by which a batch passed its check.
        kept: What is kept of these checks for other models of the kind, whose batches are counted on.
    """

    recorded: bool
    batches: int = 0
    largest: int = 0
    waiting: bool = True
    seen: Seen = field(default_factory=Seen)
    reading: Reading = READINGS[0]
    kept: Checks | None = None

    def copied(self) -> Checks:
        """The same for another model; nothing that one of them finds changes the other's."""
        return replace(self, seen=deepcopy(self.seen), kept=None)

    def values(self, task: Task, examples: Examples, size: int | None = None, *, anew: bool = False) -> None:
        """Check the values of a batch, of which ``size`` examples pass at once, if it is its turn.

        That is at batches 1, 2, 4, 8, ..., counted in this process over all models of a kind, if a batch is larger by a
        quarter than all that were checked, and if it is to be checked ``anew``. A batch without enough finite losses to
        tell leaves it to the next one. An example that is alone is checked beside itself, as it passes in training: one
        row has no shape that tells examples from anything else.

        Raises:
            InvalidArgumentError: It says what is wrong and what to do about it.
        """
        count = count_examples(examples) if size is None else min(size, count_examples(examples))
        self.batches += not anew
        if self.kept is not None:
            self.kept.batches += not anew
        self.waiting |= anew or self.batches & (self.batches - 1) == 0
        larger = count > _LARGER * self.largest
        if count == 0 or not (self.waiting or larger):
            return
        rows = torch.arange(max(count, _FEWEST), device="cpu") % count_examples(examples)
        piece = take(examples, rows)
        self.waiting = True  # also if the next line raises
        if self._told(task, piece, larger):
            self.largest, self.waiting = max(self.largest, count), False
            _keep(self, task, examples)

    def known(self, task: Task) -> Task:
        """The task with what checks have found out about it."""
        return replace(task, seen=self.seen, reading=self.reading, quiet=self.seen.quiet, turned=self.seen.turned)

    def _told(self, task: Task, piece: Examples, larger: bool) -> bool:
        """Whether values could be compared: by the reading that was found, or by the first that passes."""
        refusals: list[LayoutError] = []
        for reading in (self.reading,) if self.largest else READINGS:
            given = replace(task, reading=reading, turned=self.seen.turned)
            try:
                told = check_values(
                    given, piece, recorded=self.recorded, perturbed=larger, seed=self.batches, seen=self.seen
                )
            except LayoutError as error:
                refusals.append(error)
            else:
                self.reading = reading
                return told
        raise refusals[0]


_checks: WeakKeyDictionary[nn.Module, WeakKeyDictionary[ExampleLosses, dict[State, Checks]]] = WeakKeyDictionary()
"""For every model alive, with each of its losses, the checks in the states that it was in last."""

_of_kinds: dict[Hashable, Checks] = {}
"""For each kind, with either engine, the checks after the last batch that was checked."""

_MOST_KINDS = 256


def check_structure(task: Task, examples: Examples, *, recorded: bool = True) -> Checks:
    """Refuse a model that may not be trained as it is now; otherwise, the checks of its values in this state.

    It is called before every batch and costs a few microseconds while nothing changes.

    Raises:
        InvalidArgumentError: It names the module and what to do about it.
    """
    of_model = _checks.get(task.model)
    if of_model is None:
        of_model = _checks[task.model] = WeakKeyDictionary()
    known = of_model.setdefault(task.losses, {})
    state = _state(task, recorded)
    checks = known.get(state)
    if checks is None:
        (check_model if recorded else check_layers)(task.model)
        for oldest in list(known)[: len(known) - _MOST_STATES + 1]:
            del known[oldest]
        checks = known[state] = _begun(task, examples, recorded)
    return checks


def _begun(task: Task, examples: Examples, recorded: bool) -> Checks:
    """The checks of a model in a new state: as they stood when the last batch of this kind was checked, or new ones."""
    known = _of_kinds.get((kind_of(task, examples), recorded))
    return Checks(recorded) if known is None else replace(known.copied(), kept=known)


def _keep(checks: Checks, task: Task, examples: Examples) -> None:
    """Keep where the checks stand, for other models of this kind.

    Guarantee:
        Only a batch that was checked and passed is kept, under the kind that the model had then. Where a check refused
        an earlier model, or could not tell, it is made of the next one's first batch; and so is it of a model of which
        no kind can be told.
    """
    kind = kind_of(replace(task, quiet=frozenset(), turned=None), examples)
    if kind is None:
        return
    _of_kinds.pop((kind, checks.recorded), None)
    while len(_of_kinds) >= _MOST_KINDS:
        del _of_kinds[next(iter(_of_kinds))]
    checks.kept = _of_kinds[kind, checks.recorded] = checks.copied()


def check_model(model: nn.Module) -> None:
    """Refuse layers that mix examples, or overwrite what the engine computes gradients from.

    Raises:
        InvalidArgumentError: It names the module and what to do about it.
    """
    check_layers(model)
    for path, module in model.named_modules():
        if overwrites(module) and not can_run_out_of_place(module):
            problem = "it overwrites values that gradients are computed from; set inplace=False"
            raise InvalidArgumentError(f"{_name(path, module)}: {problem}")


def check_layers(model: nn.Module) -> None:
    """Refuse layers that mix examples or keep statistics of them, whatever the engine.

    Raises:
        InvalidArgumentError: It names the module and what to do about it.
    """
    for path, module in model.named_modules():
        problem = _problem(module)
        if problem is not None:
            raise InvalidArgumentError(f"{_name(path, module)}: {problem}")


def _problem(module: nn.Module) -> str | None:
    """What is wrong with a module by itself, and what to do about it."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it runs outside of Python, where no call of a layer is seen; give the module that it was made from"
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return "it mixes the examples of a batch; use replace_batchnorm(model), which puts GroupNorm in its place"
    if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
        return "its running statistics would carry private data out of training; set track_running_stats=False"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return "it rescales rows during the forward pass, outside any privacy guarantee; leave max_norm=None"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.scale_grad_by_freq:
        return "an example's gradient would depend on the others' words; leave scale_grad_by_freq=False"
    return None


def _name(path: str, module: nn.Module) -> str:
    return f"module {path or 'model'!r} ({type(module).__name__})"


def _state(task: Task, recorded: bool) -> State:
    """Identities of all modules, parameters and buffers, with modes, settings, hooks and what is trainable.

    Objects are known by their address, so that the model is not kept alive; hooks by their number, which is unique.
    """
    state: list[object] = [recorded]
    for module in task.modules:
        own = module.__dict__
        if "training" not in own:  # a scripted module, which is refused
            check_layers(task.model)
        state += id(module), module.__class__, own["training"], id(own.get("forward")), *map(own.get, _SETTINGS)
        for hooks in filter(None, map(own.__getitem__, _HOOKS)):
            state += hooks
        for parameter in own["_parameters"].values():
            state += id(parameter), parameter is not None and parameter.requires_grad
        if own["_buffers"]:
            state += map(id, own["_buffers"].values())
    return tuple(state)
