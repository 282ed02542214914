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
    assert [replaced[0][1].num_groups, replaced[2].num_groups] == [1, 1]
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


@pytest.mark.parametrize(
    ("layer", "most", "groups"),
    [
        (nn.BatchNorm2d(64), 32, 16),
        (nn.BatchNorm2d(512), 32, 32),
        (nn.BatchNorm2d(58), 32, 2),
        (nn.BatchNorm3d(64), 8, 8),
        (nn.BatchNorm2d(3), 32, 1),
        (nn.BatchNorm1d(64), 32, 4),
        (nn.BatchNorm1d(8), 32, 1),
    ],
)
def test_groups_suit_the_width(layer, most, groups):
    replaced = replace_batchnorm(layer, most)
    assert replaced.num_groups == groups


def test_vectors_do_not_vanish():
    """Groups of one channel would turn every vector into the bias."""
    outputs = replace_batchnorm(nn.BatchNorm1d(24))(torch.randn(5, 24, generator=torch.Generator().manual_seed(0)))
    assert outputs.std(0).min() > 0.1


def seen(model: nn.Module) -> nn.Module:
    """The model with running statistics of some batches."""
    with torch.no_grad():
        for _ in range(3):
            model(2 + normal(7, 1, 3, 3))
    return model


def test_fixed_statistics_compute_what_evaluation_computes_in_any_mode():
    model = nn.Sequential(nn.Conv2d(1, 6, 2), nn.BatchNorm2d(6), BatchNormAct2d(6), nn.Flatten(), nn.BatchNorm1d(24))
    model = seen(nn.Sequential(*model, nn.BatchNorm1d(24, affine=False), nn.Linear(24, 2)).double())
    replaced = replace_batchnorm(model, fixed=True)
    inputs = normal(5, 1, 3, 3)
    expected, before = model.eval()(inputs), {name: each.clone() for name, each in replaced.named_buffers()}
    assert torch.equal(replaced.train()(inputs), expected)
    assert torch.equal(replaced.eval()(inputs), expected)
    assert all(torch.equal(each, before[name]) for name, each in replaced.named_buffers())
    assert_engine_exact(replaced.train(), inputs)
    replaced[1].weight.requires_grad_(False)
    assert_engine_exact(replaced, inputs)


def test_statistics_that_are_not_kept_cannot_be_fixed():
    with pytest.raises(InvalidArgumentError, match=r"module '0' \(BatchNorm1d\).*GroupNorm"):
        replace_batchnorm(nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), fixed=True)


def test_groups_are_a_whole_number():
    with pytest.raises(InvalidArgumentError, match="groups=0"):
        replace_batchnorm(nn.BatchNorm1d(4), 0)
