"""Pretrained networks of timm, and what they make of images.

Guarantee:
    An image's features are a function of that image and of the network, which was trained on other data. The network
    is in evaluation mode, so batch normalisation uses its own statistics and not those of the batch, and sizes, means
    and deviations are constants of the network. Embedding private images therefore costs no privacy.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from inosgd import _validate
from inosgd._extras import needs
from inosgd.data.files import refuse
from inosgd.errors import InosgdError, InvalidArgumentError


@dataclass(frozen=True, eq=False)
class Network:
    """A network from images to features.

    Attributes:
        module: In evaluation mode, without its last layer.
        size: Images are resized to so many pixels in height and width.
        mean: Subtracted from each colour, which goes from 0 to 1.
        deviation: Each colour is then divided by it.
    """

    module: nn.Module
    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def load_network(name: str, weights: Path | None, *, random_weights: bool = False, size: int | None = None) -> Network:
    """The timm model ``name``, with weights from a safetensors file, or random ones, or those that timm downloads."""
    if weights is not None and random_weights:
        raise InvalidArgumentError(f"weights={str(weights)!r}: give weights or random ones, not both")
    timm = _import_timm()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = _create(timm, name, pretrained=weights is None and not random_weights)
    if weights is not None:
        _load_weights(module, weights)
    settings = module.pretrained_cfg
    pixels = size if size is not None else int(settings["input_size"][-1])
    _validate.whole(1, size=pixels)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return Network(module.eval(), pixels, tuple(settings["mean"]), tuple(settings["std"]))


def embed(network: Network, batches: Iterable[torch.Tensor]) -> npt.NDArray[np.float32]:
    """The features of images that come in batches of bytes: example, one or three colours, row, column."""
    with torch.inference_mode():
        features = [network.module(_prepared(network, batch)).float().numpy() for batch in batches]
    made: npt.NDArray[np.float32] = np.concatenate(features)
    if made.ndim != 2:
        raise InvalidArgumentError(f"the network gives features of shape {made.shape[1:]}; choose one that pools them")
    if not np.isfinite(made).all():
        raise InvalidArgumentError("the network gives features that are not finite; are these its weights?")
    return made


def _prepared(network: Network, pixels: torch.Tensor) -> torch.Tensor:
    colours = pixels.to(torch.float32) / 255
    if colours.shape[2:] != (network.size, network.size):
        colours = F.interpolate(colours, (network.size, network.size), mode="bicubic", antialias=True).clamp(0, 1)
    mean, deviation = torch.tensor(network.mean), torch.tensor(network.deviation)
    return (colours.expand(-1, len(mean), -1, -1) - mean[:, None, None]) / deviation[:, None, None]


def _import_timm() -> Any:
    try:
        with needs("embed"):
            return importlib.import_module("timm")
    except RuntimeError as error:  # torchvision, which timm imports, was built for another torch
        raise InosgdError(
            f"timm cannot be imported ({error}): install the torchvision that belongs to torch {torch.__version__}"
        ) from None


def _create(timm: Any, name: str, *, pretrained: bool) -> Any:
    """The model without its last layer; ``num_classes=0`` makes timm leave it out."""
    try:
        module = timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:
        raise _validate.fail("model", name, f"give a model that timm knows ({error})") from None
    if not pretrained:
        return module
    try:
        return timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # whatever the network, the hub or its client have to say
        raise InvalidArgumentError(
            f"model={name!r}: its weights cannot be had ({error}); give --weights FILE, a safetensors file"
        ) from None


def _load_weights(module: Any, path: Path) -> None:
    """Load every weight of ``module``; the file may also hold the last layer, which is left out."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise refuse(path, f"cannot be read as safetensors ({error})") from None
    last = str(module.pretrained_cfg.get("classifier", "classifier"))
    kept = {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{last}.")}
    try:
        module.load_state_dict(kept)
    except RuntimeError as error:
        raise refuse(path, f"not the weights of this model ({' '.join(str(error).split())[:300]})") from None
