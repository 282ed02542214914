"""All configurations, by name."""

from __future__ import annotations

from tests.architectures import adapters, language, torch_nn, vision
from tests.architectures.configuration import Configuration


def all_configurations() -> dict[str, Configuration]:
    """By name, package after package."""
    return {
        **torch_nn.configurations(),
        **vision.torchvision_configurations(),
        **vision.timm_configurations(),
        **vision.segmentation_configurations(),
        **language.configurations(),
        **adapters.configurations(),
    }
