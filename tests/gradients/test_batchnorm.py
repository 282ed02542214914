"""BatchNorm is replaced, with nothing lost that a subclass adds to it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import replace_batchnorm
from tests.gradients.gradient_oracle import assert_engine_exact


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_replaced_everywhere_and_trainable():
    model = nn.Sequential(nn.Conv2d(1, 6, 2), nn.BatchNorm2d(6), nn.Sequential(nn.BatchNorm2d(6, affine=False)))
    model = nn.Sequential(model, nn.Flatten(), nn.BatchNorm1d(24), nn.Linear(24, 2)).double()
    with torch.no_grad():
        model[0][1].weight.copy_(torch.arange(6))
    replaced = replace_batchnorm(model, groups=4)
    assert isinstance(model[0][1], nn.BatchNorm2d)
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in replaced.modules())
    assert torch.equal(replaced[0][1].weight, torch.arange(6.0, dtype=torch.float64))
    assert [replaced[0][1].num_groups, replaced[2].num_groups] == [3, 4]
    assert_engine_exact(replaced, normal(5, 1, 3, 3))


def test_alone():
    assert isinstance(replace_batchnorm(nn.BatchNorm1d(4)), nn.GroupNorm)


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm has it: dropout and an activation behind the normalisation, in one layer."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.Hardtanh(-0.1, 0.1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.act(self.drop(super().forward(inputs)))


class Scaled(nn.BatchNorm2d):
    """It does more than its name says."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(inputs)


def test_activations_of_a_subclass_are_kept():
    model = nn.Sequential(nn.Conv2d(1, 6, 2), BatchNormAct2d(6), nn.Flatten(), nn.Linear(24, 2)).double()
    model[1].act.eval()
    replaced = replace_batchnorm(model)
    outputs = replaced[:2](normal(5, 1, 3, 3))
    assert outputs.abs().max() == 0.1
    assert [module.training for module in replaced[1].modules()] == [True, True, True, False]
    assert_engine_exact(replaced, normal(5, 1, 3, 3))


@pytest.mark.parametrize(
    ("layer", "fix"), [(Scaled(4), "by hand"), (nn.LazyBatchNorm2d(), "pass a batch"), (nn.LazyBatchNorm1d(), "batch")]
)
def test_other_subclasses_are_refused_by_name(layer, fix):
    model = nn.Sequential(nn.Identity(), nn.Sequential(layer))
    with pytest.raises(InvalidArgumentError, match=rf"module '1\.0' \({type(layer).__name__}\).*{fix}"):
        replace_batchnorm(model)


def test_a_layer_with_two_names_stays_one():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.BatchNorm1d(4)
            self.other = self.one

    replaced = replace_batchnorm(Twice())
    assert isinstance(replaced.one, nn.GroupNorm)
    assert replaced.other is replaced.one
