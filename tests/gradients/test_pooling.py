"""Max-pooling in the other layout: the very same numbers, in the layout the model expects."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from inosgd.gradients.rules import pooling
from tests.gradients.gradient_oracle import assert_engine_exact
from tests.properties import tries

pytestmark = pytest.mark.usefixtures("sizes_unprobed")


def images(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """With many ties: three values only."""
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@tries(10)
@given(
    count=st.sampled_from([0, 1, 2, 7]),
    channels=st.integers(8, 17),
    size=st.tuples(st.integers(5, 8), st.integers(5, 8)),
    kernel=st.one_of(st.integers(2, 3), st.tuples(st.integers(2, 3), st.integers(2, 3))),
    stride=st.sampled_from([None, 1, 2, (1, 2)]),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    ceil_mode=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_values_and_gradients_are_identical(count, channels, size, kernel, stride, padding, dilation, ceil_mode, dtype):
    layer = nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    inputs = images(count, channels, *size, dtype=dtype).requires_grad_()
    assert pooling.suits(layer, inputs)
    expected, actual = layer(inputs), pooling.pooled(layer, inputs)
    assert torch.equal(actual, expected)
    assert actual.is_contiguous()
    gradient = torch.linspace(-1, 1, expected.numel(), dtype=dtype).view_as(expected)
    of_expected, of_actual = (torch.autograd.grad(output, inputs, gradient)[0] for output in (expected, actual))
    assert torch.allclose(of_actual, of_expected, rtol=1e-6, atol=1e-6 if dtype == torch.float32 else 1e-14)
    assert of_actual.is_contiguous()


def test_a_few_images_at_a_time(monkeypatch):
    layer, inputs = nn.MaxPool2d(3, 2), images(7, 8, 9, 9).requires_grad_()
    expected = layer(inputs)
    monkeypatch.setattr(pooling, "CHUNK_ELEMENTS", 2 * 8 * 81)
    actual = pooling.pooled(layer, inputs)
    assert torch.equal(actual, expected)
    gradient = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    of_expected, of_actual = (torch.autograd.grad(output, inputs, gradient)[0] for output in (expected, actual))
    assert torch.allclose(of_actual, of_expected, rtol=1e-12, atol=1e-14)


def test_not_a_number_and_infinity():
    layer, inputs = nn.MaxPool2d(2), images(4, 8, 6, 6)
    inputs[0, 0, 0, 0], inputs[1, 1, 2, 2], inputs[2] = torch.nan, torch.inf, -torch.inf
    assert torch.equal(pooling.pooled(layer, inputs).nan_to_num(7.0), layer(inputs).nan_to_num(7.0))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.MaxPool2d(2), images(2, pooling.CHANNELS - 1, 4, 4)),
        (nn.MaxPool2d(2), images(9, 4, 4)),
        (nn.MaxPool2d(2), images(2, 9, 4, 4).contiguous(memory_format=torch.channels_last)),
        (nn.MaxPool2d(2), images(2, 9, 4, 4).bfloat16()),
        (nn.MaxPool2d(2, return_indices=True), images(2, 9, 4, 4)),
    ],
)
def test_anything_else_is_left_to_the_library(layer, inputs):
    assert not pooling.suits(layer, inputs)


def test_in_a_model_that_views(monkeypatch):
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.pool, self.head = nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.Linear(32, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.pool(torch.tanh(self.convolution(inputs)))
            return self.head(hidden.view(len(hidden), -1))

    calls = []
    plain = pooling.pooled
    monkeypatch.setattr(pooling, "pooled", lambda *arguments: calls.append(1) or plain(*arguments))
    torch.manual_seed(0)
    images_of_noise = torch.randn(7, 1, 6, 6, dtype=torch.float64)
    assert_engine_exact(Viewing().double(), images_of_noise)
    assert calls
