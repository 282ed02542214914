"""Comparisons of an engine with a loop over examples in float64.

A configuration is *exact* if, with everything in float64, the engine's norms are within 1e-5 of the loop's and its
weighted sum within 1e-6 of the sum of the weighted norms; and if, in the types that the model has, no norm is below the
loop's by more than 1e-5, or above it by more than 1e-2, or by more than four times what plain autograd is off in these
types if that is more. There the engine's norms are bounds: they are above by what roundings may have taken away. Models
that draw random numbers first pass as they are, which must not fail, and are compared with draws held fixed
(`inosgd.gradients.draws`).

Many models compute parts in float32 whatever their own type. In the comparison in float64 they are asked not to
(`InDouble`); where they have no kernels for it, the comparison is in their own types alone.

What is refused is tried again by the remedy that the refusal names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from inosgd.errors import InosgdError
from inosgd.gradients import BookkeepingEngine, GradientEngine, ReferenceEngine, replace_batchnorm, trainable_parameters
from inosgd.gradients.draws import HeldDraws
from tests.architectures.configuration import Configuration, Losses, made

_NORMS, _SUMS, _BOUND, _PLAIN = 1e-5, 1e-6, 1e-2, 4.0


@dataclass(frozen=True)
class Outcome:
    """What became of a configuration.

    Attributes:
        kind: ``exact``, ``refused``, ``crash`` or ``wrong``.
        remedies: What was done to get there; each was named by the refusal before it.
        reason: Of the refusals, one after the other, or of a crash or error; empty if there was none.
        norms: The largest relative error of a norm in float64.
        sums: The error of the sum in float64, relative to the sum of weighted norms.
        below: How far a norm in the model's own types is below the loop's, at most, relative to it.
        above: How far it is above.
    """

    kind: str
    remedies: tuple[str, ...] = ()
    reason: str = ""
    norms: float = float("nan")
    sums: float = float("nan")
    below: float = float("nan")
    above: float = float("nan")


@dataclass(frozen=True)
class _Found:
    norms: np.ndarray
    total: np.ndarray


_REMEDIES: dict[str, str] = {
    "use replace_batchnorm(model)": "replace_batchnorm",
    "model.set_experts_implementation('batched_mm')": "batched_mm",
    "use ReferenceEngine": "ReferenceEngine",
    "call model.eval() on its module": "eval",
    "write use_reentrant=False": "use_reentrant=False",
}
"""What a message says, and the name of what is done about it."""


def _remedied(model: nn.Module, remedy: str, error: Exception) -> nn.Module:
    """The model after what a refusal asked for."""
    if remedy == "replace_batchnorm":
        return replace_batchnorm(model)
    if remedy == "eval":
        named = str(error).split("'")[1]
        model.get_submodule(named.rpartition(".")[0]).eval()
    if remedy == "batched_mm":
        model.set_experts_implementation(remedy)
    if remedy == "use_reentrant=False":
        vars(model)["use_reentrant"] = False
    return model


def outcome(configuration: Configuration) -> Outcome:
    """Compare; after a refusal again, by its remedy, until there is none left."""
    model, batch = made(configuration)
    engine: GradientEngine = BookkeepingEngine()
    remedies: list[str] = []
    reason = ""
    while True:
        try:
            errors = _errors(engine, model, batch, configuration.losses)
        except InosgdError as error:
            reason = f"{reason}; then {_one_line(error)}" if reason else _one_line(error)
            remedy = next((name for said, name in _REMEDIES.items() if said in str(error)), None)
            if remedy is None or remedy in remedies:
                return Outcome("refused", tuple(remedies), reason)
            remedies.append(remedy)
            if remedy == "ReferenceEngine":
                engine = ReferenceEngine()
            model = _remedied(model, remedy, error)
        except Exception as error:
            return Outcome("crash", tuple(remedies), f"{type(error).__name__}: {_one_line(error)}")
        else:
            problem = _problem(errors)
            return Outcome("wrong" if problem else "exact", tuple(remedies), problem or reason, *errors[:4])


_Errors = tuple[float, float, float, float, float]


def _problem(errors: _Errors) -> str:
    norms, sums, below, above, plain = errors
    if not norms <= _NORMS:
        return f"norms differ by {norms:.1e}"
    if not sums <= _SUMS:
        return f"the sum differs by {sums:.1e}"
    if not (below <= max(_NORMS, _PLAIN * plain) and above <= max(_BOUND, _PLAIN * plain)):
        return f"norms in own types are {below:.1e} below and {above:.1e} above, plain autograd's differ by {plain:.1e}"
    return ""


def _errors(engine: GradientEngine, model: nn.Module, batch: Any, losses: Losses) -> _Errors:
    """Of norms and sum in float64; of norms in the model's own types, downward, upward, and by plain autograd."""
    draws = _draws(model, batch, losses)
    if draws:
        _by_engine(engine, model, batch, losses)
    exact_model, exact_batch = copy.deepcopy(model).double(), pytree.tree_map_only(torch.Tensor, _as_double, batch)
    with HeldDraws() if draws else nullcontext():
        own = _by_engine(engine, model, batch, losses)
        plain = _by_loop(model, batch, losses)
        with InDouble():
            expected = _by_loop_if_possible(exact_model, exact_batch, losses)
            found = own if expected is None else _by_engine(engine, exact_model, exact_batch, losses)
        expected = expected or plain
    off, plain_off, found_off = (_relative(each, expected) for each in (own, plain, found))
    worst = [float(np.abs(each).max()) for each in (found_off, plain_off)]
    return worst[0], _sum_error(found, expected), float(-off.min()), float(off.max()), worst[1]


def _relative(found: _Found, expected: _Found) -> np.ndarray:
    """How far each norm is above what is expected, relative to it; where that is 0, to the largest."""
    return (found.norms - expected.norms) / np.fmax(expected.norms, 1e-9 * expected.norms.max())


_SHORT = (torch.float32, torch.bfloat16, torch.float16)


class InDouble(TorchFunctionMode):
    """Whatever asks for a shorter type inside gets float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        asked = torch.Tensor.double if func is torch.Tensor.float else func
        return asked(*map(_long, args), **{name: _long(value) for name, value in (kwargs or {}).items()})


def _long(argument: Any) -> Any:
    return torch.float64 if isinstance(argument, torch.dtype) and argument in _SHORT else argument


def _draws(model: nn.Module, batch: Any, losses: Losses) -> bool:
    before = torch.get_rng_state()
    with torch.no_grad():
        losses(model, pytree.tree_map_only(torch.Tensor, torch.clone, batch)) if not _has_batchnorm(model) else None
    return not torch.equal(before, torch.get_rng_state())


def _has_batchnorm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def _scales(count: int) -> np.ndarray:
    return np.linspace(0.2, 1.3, count)


def _by_engine(engine: GradientEngine, model: nn.Module, batch: Any, losses: Losses) -> _Found:
    count = len(pytree.tree_leaves(batch)[0])
    with engine.on(model, losses, batch) as gradients:
        measured = gradients.measure()
        return _Found(measured.grad_norms, gradients.weighted_sum(_scales(count)).double().numpy())


def _by_loop(model: nn.Module, batch: Any, losses: Losses) -> _Found:
    parameters = list(trainable_parameters(model).values())
    count = len(pytree.tree_leaves(batch)[0])
    norms, total = [], torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    for index, scale in enumerate(_scales(count)):
        one = pytree.tree_map_only(torch.Tensor, _row(index), batch)
        losses(model, one).sum().backward()
        gradient = torch.cat([_taken(parameter) for parameter in parameters])
        norms.append(float(gradient.norm()))
        total += scale * gradient
    if not max(norms) > 0:
        raise AssertionError("all gradients are 0, so that nothing is compared")
    return _Found(np.array(norms), total.numpy())


def _taken(parameter: nn.Parameter) -> torch.Tensor:
    found, parameter.grad = parameter.grad, None
    return torch.zeros(parameter.numel(), dtype=torch.float64) if found is None else found.flatten().double()


def _row(index: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda leaf: leaf[index : index + 1].clone()


def _by_loop_if_possible(model: nn.Module, batch: Any, losses: Losses) -> _Found | None:
    """The loop in float64; None for a model whose own code has no kernels for it."""
    try:
        return _by_loop(model, batch, losses)
    except RuntimeError:
        return None


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _sum_error(found: _Found, expected: _Found) -> float:
    size = float(_scales(len(expected.norms)) @ expected.norms)
    return float(np.linalg.norm(found.total - expected.total)) / size


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
