from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from inosgd.data.networks import Network, embed, load_network
from inosgd.errors import InosgdError, InvalidArgumentError, MissingExtraError

IMAGES = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


class Pooled(nn.Module):
    """As timm makes them: convolution, batch normalisation, pooling, no last layer, settings on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)
        self.pretrained_cfg = {
            "input_size": (3, 8, 8),
            "mean": (0.5, 0.4, 0.3),
            "std": (0.5, 0.25, 0.2),
            "classifier": "head",
        }

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(images))).mean(dim=(2, 3))


class FakeTimm:
    """The one function of timm that is used; ``hub`` is what its download does."""

    def __init__(self, hub: Exception | None = None) -> None:
        self.hub, self.asked = hub, []

    def create_model(self, name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        self.asked.append((name, pretrained, num_classes))
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        if pretrained and self.hub is not None:
            raise self.hub
        return Pooled()


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> FakeTimm:
    fake = FakeTimm()
    monkeypatch.setitem(sys.modules, "timm", fake)  # type: ignore[arg-type]
    return fake


def unlike(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


def alone_and_together(network: Network) -> float:
    together = embed(network, [IMAGES])
    alone = embed(network, IMAGES.split(1))
    return unlike(together, alone)


def test_features_depend_on_no_other_image(timm: FakeTimm) -> None:
    assert alone_and_together(load_network("tiny", None, random_weights=True)) < 1e-6


def test_negative_control_in_training_mode_they_would(timm: FakeTimm) -> None:
    network = load_network("tiny", None, random_weights=True)
    network.module.train()
    assert alone_and_together(network) > 1e-2


def test_colours_are_normalised_by_the_models_constants() -> None:
    network = Network(nn.Flatten(), 1, (0.5, 0.4, 0.3), (0.5, 0.25, 0.2))
    pixels = torch.tensor([[[[255]], [[102]], [[51]]]], dtype=torch.uint8)
    np.testing.assert_allclose(embed(network, [pixels]), [[1.0, 0.0, -0.5]], atol=1e-6)


def test_grey_images_are_taken_as_three_equal_colours() -> None:
    network = Network(nn.Flatten(), 2, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    made = embed(network, [torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)])
    np.testing.assert_array_equal(made, np.ones((1, 12)))


def test_images_are_resized_within_the_range_of_pixels() -> None:
    network = Network(nn.Flatten(), 5, (0.0,) * 3, (1.0,) * 3)
    made = embed(network, [IMAGES])
    assert made.shape == (6, 75)
    assert made.min() >= 0
    assert made.max() <= 1


def test_random_weights_are_always_the_same_and_leave_the_generator_alone(timm: FakeTimm) -> None:
    before = torch.random.get_rng_state()
    made = [embed(load_network("tiny", None, random_weights=True), [IMAGES]) for _ in range(2)]
    assert unlike(*made) == 0
    assert torch.equal(before, torch.random.get_rng_state())
    assert timm.asked == [("tiny", False, 0)] * 2


def test_weights_from_a_file_without_the_last_layer(timm: FakeTimm, tmp_path: Path) -> None:
    trained = Pooled()
    save_file({**trained.state_dict(), "head.weight": torch.zeros(2, 5)}, tmp_path / "w.safetensors")
    network = load_network("tiny", tmp_path / "w.safetensors")
    assert not any(pretrained for _, pretrained, _ in timm.asked)
    same = Network(trained.eval(), network.size, network.mean, network.deviation)
    with torch.no_grad():
        assert unlike(embed(network, [IMAGES]), embed(same, [IMAGES])) == 0
    assert unlike(embed(network, [IMAGES]), embed(load_network("tiny", None, random_weights=True), [IMAGES])) > 0


def test_unfit_weights_are_refused_by_name(timm: FakeTimm, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"\x80not safetensors")
    with pytest.raises(InvalidArgumentError, match=r"w\.safetensors: cannot be read as safetensors"):
        load_network("tiny", path)
    save_file({"convolution.weight": torch.zeros(5, 3, 3, 3)}, path)
    with pytest.raises(InvalidArgumentError, match=r"w\.safetensors: not the weights of this model .*Missing key"):
        load_network("tiny", path)
    with pytest.raises(InvalidArgumentError, match="weights or random ones, not both"):
        load_network("tiny", path, random_weights=True)


def test_unknown_models_and_unreachable_weights(timm: FakeTimm) -> None:
    with pytest.raises(InvalidArgumentError, match="model='huge': give a model that timm knows"):
        load_network("huge", None)
    timm.hub = ConnectionError("no route to the hub")
    with pytest.raises(InvalidArgumentError, match=r"no route to the hub.*--weights FILE"):
        load_network("tiny", None)


def test_features_must_be_finite_vectors() -> None:
    maps = Network(nn.Identity(), 8, (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(InvalidArgumentError, match=r"features of shape \(3, 8, 8\)"):
        embed(maps, [IMAGES])
    broken = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    broken[1].weight.data.fill_(float("nan"))
    with pytest.raises(InvalidArgumentError, match="not finite"):
        embed(Network(broken.requires_grad_(False), 8, (0.0,) * 3, (1.0,) * 3), [IMAGES])


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=r"timm is not installed: pip install 'inosgd\[embed\]'"):
        load_network("tiny", None)


def test_a_torchvision_for_another_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> SimpleNamespace:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("inosgd.data.networks.importlib.import_module", fail)
    with pytest.raises(InosgdError, match="torchvision that belongs to torch"):
        load_network("tiny", None)
