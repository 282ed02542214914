"""What a model draws, held fixed: every random operation has one answer that does not depend on the batch.

A model with dropout gives an example another loss in every pass, so that nothing can be compared. Inside `HeldDraws`
it is trained as it is, in its own mode, with draws that are allowed but always the same: no unit is dropped, a uniform
number is the middle of its range, a normal one lies a standard deviation above its mean. An order is the reversed one,
so that whatever pairs examples by a random order (mixup) still pairs different ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Given = Mapping[str, Any]
"""The arguments of an operation by the names in its schema."""


class HeldDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers random operations inside a ``with`` block; torch's generators stay where they are.

    What is drawn by a generator of the model's own is drawn: it cannot be set back for a second pass in training.

    Attributes:
        asked: Whether anything was drawn so far, or before this.
    """

    def __init__(self, asked: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = asked

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__.removesuffix("_")
        answer = _ANSWERS.get(name)
        given = {} if answer is None else _by_name(func, args, kwargs or {})
        if answer is None or given.get("generator") not in (None, torch.default_generator):
            return func(*args, **(kwargs or {}))
        self.asked = True
        result = answer(given)
        target = given["self"] if func.overloadpacket.__name__.endswith("_") else given.get("out")
        return result if target is None else target.copy_(result)


def _by_name(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = func._schema.arguments
    given = {each.name: each.default_value for each in arguments if each.has_default_value() and each.name != "dtype"}
    return {**given, **{each.name: value for each, value in zip(arguments, args, strict=False)}, **kwargs}


def _filled(given: Given, value: float) -> torch.Tensor:
    """A tensor of one value in the shape that is asked for: like another tensor, or of a size."""
    options = {key: given[key] for key in ("dtype", "device") if given.get(key) is not None}
    like = given.get("self")
    return torch.full(given["size"], value, **options) if like is None else torch.full_like(like, value, **options)


def _bernoulli(given: Given) -> torch.Tensor:
    """1 wherever that is possible."""
    probability = given.get("p", given["self"])
    if isinstance(probability, torch.Tensor):
        return (probability > 0).to(given["self"].dtype).expand_as(given["self"])
    return torch.full_like(given["self"], probability > 0)


def _native_dropout(given: Given) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, drops = given["input"], given["train"] is not False
    kept = torch.full_like(inputs, not drops or given["p"] < 1, dtype=torch.bool)
    return inputs * kept / (1 - given["p"] if drops and given["p"] < 1 else 1), kept


def _normal(given: Given) -> torch.Tensor:
    mean, deviation = given.get("mean", 0.0), given.get("std", 1.0)
    if isinstance(mean, torch.Tensor) or isinstance(deviation, torch.Tensor):
        return torch.as_tensor(mean + deviation)
    return _filled(given, mean + deviation)


def _reversed(given: Given) -> torch.Tensor:
    return torch.arange(given["n"] - 1, -1, -1, dtype=given.get("dtype"), device=given.get("device"))


def _multinomial(given: Given) -> torch.Tensor:
    """The likeliest, one after the other; with replacement always the likeliest."""
    weights: torch.Tensor = given["self"]
    count: int = given["num_samples"]
    if given.get("replacement"):
        return weights.argmax(-1, keepdim=True).expand(*weights.shape[:-1], count).clone()
    return weights.argsort(dim=-1, descending=True, stable=True)[..., :count]


def _rrelu(given: Given) -> torch.Tensor:
    inputs: torch.Tensor = given["self"]
    slopes: torch.Tensor = given["noise"]  # autograd reads them later
    return inputs * slopes.copy_(torch.where(inputs > 0, 1.0, (given["lower"] + given["upper"]) / 2))


_ANSWERS: dict[str, Callable[[Given], Any]] = {
    "bernoulli": _bernoulli,
    "native_dropout": _native_dropout,
    "rand": lambda given: _filled(given, 0.5),
    "rand_like": lambda given: _filled(given, 0.5),
    "uniform": lambda given: _filled(given, (given["from"] + given["to"]) / 2),
    "randn": lambda given: _filled(given, 1.0),
    "randn_like": lambda given: _filled(given, 1.0),
    "normal": _normal,
    "log_normal": lambda given: _filled(given, math.exp(given["mean"] + given["std"])),
    "cauchy": lambda given: _filled(given, given["median"] + given["sigma"]),
    "exponential": lambda given: _filled(given, 1 / given["lambd"]),
    "geometric": lambda given: _filled(given, 1.0),
    "randint": lambda given: _filled(given, given.get("low", 0)),
    "randint_like": lambda given: _filled(given, given.get("low", 0)),
    "random": lambda given: _filled(given, given.get("from", 0)),
    "randperm": _reversed,
    "multinomial": _multinomial,
    "poisson": lambda given: given["self"].ceil(),
    "binomial": lambda given: (given["count"] * given["prob"]).ceil(),
    "_standard_gamma": lambda given: given["self"].clone(),
    "_sample_dirichlet": lambda given: given["self"] / given["self"].sum(-1, keepdim=True),
    "rrelu_with_noise": _rrelu,
}
"""By the name of an operation without overload and without the mark of those in place."""
