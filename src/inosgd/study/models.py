"""Models of a study file: three built-in ones, or a factory of the user's own.

A factory is called as ``factory(inputs, outputs, seed=..., **arguments)`` with the shape of one example and the number
of outputs, one for each class, label or target, and returns an ``nn.Module``. Where a column of text stands beside
others, ``inputs`` is a dictionary of shapes, such as ``{"numbers": (4,), "note": (80,)}``, and the model is called with
a dictionary of tensors.

What is safe: importing a module runs it. A study file may come from another person, so a factory that it names is
imported only if the person who starts the program names the same factory on the command line. There is no key in the
file that could allow it. The folder of the study is then put at the end of Python's path, behind everything that is
installed, so that nothing in it can take the place of another module. Resuming a run and applying a saved model ask
again, since run folders and models travel too. Weights are safetensors and never run code.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.models.general import cnn, lstm, mlp
from inosgd.study.inputs import as_shape

BUILT_IN: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "cnn": cnn, "lstm": lstm}
DECIDED_BY_THE_DATA = {"inputs", "channels", "height", "width", "symbols", "outputs", "padding", "seed"}
OWN_MODEL = "text beside other columns is read by a model of your own, package.module:factory; or leave one of them out"
FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def argument_names(name: str) -> list[str]:
    """The arguments of a built-in model that a study may set."""
    return [key for key in inspect.signature(BUILT_IN[name]).parameters if key not in DECIDED_BY_THE_DATA]


def build_model(
    name: str,
    arguments: Mapping[str, Any],
    *,
    inputs: Sequence[int] | Mapping[str, Sequence[int]],
    symbols: int | None,
    outputs: int,
    seed: int,
    allowed_factory: str | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """A fresh model for examples of shape ``inputs``.

    Args:
        name: "mlp", "cnn", "lstm" or "package.module:factory".
        arguments: What the model is called with besides what the data decide.
        inputs: The shape of one example; or of its parts by name, if text stands beside other columns.
        symbols: How many symbols sequences are made of; None if examples are numbers.
        outputs: How many classes, labels or targets there are.
        seed: Where the initial weights come from.
        allowed_factory: The one factory that may be imported.
        folder: Where a factory is looked for besides the installed packages.
    """
    if name not in BUILT_IN:
        factory = _factory(name, allowed_factory, folder)
        return _checked(name, factory(as_shape(inputs), outputs, seed=seed, **arguments))
    if isinstance(inputs, Mapping):
        raise InvalidArgumentError(f'"{name}" reads one tensor, and examples have {len(inputs)} parts: {OWN_MODEL}')
    given = dict(arguments)
    if name == "lstm":
        if symbols is None:
            raise InvalidArgumentError('"lstm" reads symbols: give a text column, or choose "mlp" or "cnn"')
        return lstm(symbols, outputs, padding=0, seed=seed, **given)
    if symbols is not None:
        raise InvalidArgumentError(f'"{name}" reads numbers and the data are symbols: choose "lstm"')
    if name == "mlp":
        flat = mlp(math.prod(inputs), outputs, seed=seed, **given)
        return flat if len(inputs) == 1 else nn.Sequential(nn.Flatten(), *flat)
    if len(inputs) == 2:
        height, width = inputs
        return nn.Sequential(nn.Unflatten(1, (1, height)), *cnn(1, height, width, outputs, seed=seed, **given))
    if len(inputs) != 3:
        raise InvalidArgumentError(f'"cnn" reads images and examples have shape {tuple(inputs)}: choose "mlp"')
    channels, height, width = inputs
    return cnn(channels, height, width, outputs, seed=seed, **given)


def _factory(name: str, allowed: str | None, folder: Path | None) -> Callable[..., Any]:
    if not FACTORY.fullmatch(name):
        raise InvalidArgumentError(f'"{name}" is no model: choose {", ".join(BUILT_IN)} or package.module:factory')
    if name != allowed:
        raise InvalidArgumentError(
            f"importing {name} would run its code: read it, and if you trust it add --allow-factory {name}"
        )
    if folder is not None and str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"{name} cannot be imported ({error}): install its package, or correct it") from None
    if not callable(found):
        raise InvalidArgumentError(f"{name} cannot be called: name a function that returns a model")
    result: Callable[..., Any] = found
    return result


def _checked(name: str, model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(f"{name} returned {type(model).__name__}: return a torch.nn.Module")
    return model


def model_problem(error: Exception) -> str:
    """What went wrong while a model was built, for a message about model.name or model.arguments."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if isinstance(error, InosgdError) else f"{type(error).__name__}: {text}; correct the factory"
