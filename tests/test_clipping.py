"""Clipped gradients never exceed their threshold, also in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inosgd.clipping import MARGIN, AutoClipping, FlatClipping
from inosgd.errors import InvalidArgumentError

RULES = [FlatClipping(), AutoClipping()]


@pytest.mark.parametrize("rule", RULES)
@given(norm=st.floats(0, 1e30), threshold=st.floats(1e-6, 1e6))
def test_factor_times_norm_stays_below_the_threshold(rule, norm, threshold):
    factor = rule.factors(np.array([norm]), np.array([threshold]))[0]
    assert factor * norm <= threshold * (1 - MARGIN) * (1 + 1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_float32_products_stay_below_the_threshold(rule):
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(500, 1000, generator=generator)
    thresholds = np.full(500, 0.1)
    norms = torch.linalg.vector_norm(gradients, dim=1).double().numpy()
    clipped = torch.from_numpy(rule.factors(norms, thresholds)).float()[:, None] * gradients
    assert torch.linalg.vector_norm(clipped.double(), dim=1).max() <= 0.1


def test_without_the_margin_float32_would_overshoot():
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(500, 1000, generator=generator)
    norms = torch.linalg.vector_norm(gradients, dim=1)
    clipped = (0.1 / norms)[:, None] * gradients
    assert torch.linalg.vector_norm(clipped.double(), dim=1).max() > 0.1


def test_edge_cases_of_flat_clipping():
    norms = np.array([0.0, 0.5, 1.0, 2.0, np.nan, np.inf])
    factors = FlatClipping().factors(norms, np.ones(6))
    np.testing.assert_allclose(factors, [1, 1, 1 - MARGIN, (1 - MARGIN) / 2, 0, 0])
    assert FlatClipping().factors(np.array([3.0]), np.array([np.inf]))[0] == 1.0


def test_edge_cases_of_automatic_clipping():
    factors = AutoClipping(stability=0.01).factors(np.array([0.0, 1.0, np.nan, np.inf]), np.ones(4))
    np.testing.assert_allclose(factors, [100 * (1 - MARGIN), (1 - MARGIN) / 1.01, 0, 0])
    with pytest.raises(InvalidArgumentError, match="stability=0"):
        AutoClipping(stability=0)
