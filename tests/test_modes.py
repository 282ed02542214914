"""Evaluation mode ends with every module in the mode that it had."""

from __future__ import annotations

import pytest
from torch import nn

from inosgd.modes import evaluating


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_has_its_own_mode_back(fails):
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    model[1][0].eval()
    before = [module.training for module in model.modules()]
    try:
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    assert [module.training for module in model.modules()] == before == [True, True, True, False, True]
