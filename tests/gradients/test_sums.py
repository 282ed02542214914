"""Sums over examples keep to the bounds that their module states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inosgd.gradients.rules import sums
from inosgd.gradients.rules.sums import Operand, lookup_sum, outer_sums, row_sum
from inosgd.rounding import ROUNDOFFS

TYPES = (torch.float32, torch.float64)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def exact_outer(outputs, inputs, scales):
    return torch.einsum("b,bto,bti->oi", scales, outputs.double(), inputs.double())


def magnitude(outputs, inputs, scales) -> float:
    lengths = outputs.double().norm(dim=2) * inputs.double().norm(dim=2)
    return float((scales.abs().unsqueeze(1) * lengths).sum())


@pytest.fixture(params=["compiled", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(sums, "kernel", lambda: None)
    elif sums.kernel() is None:
        pytest.skip("there is no compiler here")


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 40),
    places=st.integers(1, 9),
    widths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    layout=st.permutations([0, 1, 2]),
    dtype=st.sampled_from(TYPES),
    single=st.booleans(),
)
def test_any_shape_and_layout(count, places, widths, layout, dtype, single):
    back = [layout.index(axis) for axis in range(3)]
    outputs, inputs = (
        normal(count, places, width, seed=seed, dtype=dtype).permute(*layout).contiguous().permute(*back)
        for seed, width in enumerate(widths)
    )
    scales = normal(count, seed=2, dtype=torch.float64)
    spread = scales.repeat_interleave(places)
    found = outer_sums(Operand.of(outputs), [Operand.of(inputs)], spread, single=single)[0]
    unit = ROUNDOFFS * 2.0**-24 if single and dtype == torch.float32 else 2.0**-42
    assert (found - exact_outer(outputs, inputs, scales)).norm() <= unit * magnitude(outputs, inputs, scales)
    rows = row_sum(outputs, spread, single=single)
    expected = torch.einsum("b,bto->o", scales, outputs.double())
    of_rows = float((scales.abs().unsqueeze(1) * outputs.double().norm(dim=2)).sum())
    assert (rows - expected).norm() <= unit * of_rows


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("single", [True, False])
def test_contributions_that_cancel(single):
    """Two examples whose many places cancel in every order: what is left is nothing beside what was added."""
    half = normal(3, 500, 20, seed=1) * 1e6
    outputs = torch.cat([half, -half], dim=1)[:, torch.randperm(1000, generator=torch.Generator().manual_seed(2))]
    inputs = torch.ones(3, 1000, 17)
    scales = torch.tensor([1.0, 0.1, 3.7], dtype=torch.float64)
    spread = scales.repeat_interleave(1000)
    found = outer_sums(Operand.of(outputs), [Operand.of(inputs)], spread, single=single)[0]
    unit = ROUNDOFFS * 2.0**-24 if single else 2.0**-42
    assert (found - exact_outer(outputs, inputs, scales)).norm() <= unit * magnitude(outputs, inputs, scales)


@pytest.mark.usefixtures("way")
def test_long_sums_of_equal_numbers():
    """Errors of equal numbers have one sign: a float32 sum of them all would be off by hundreds of roundings."""
    outputs, inputs = torch.full((40_000, 1, 3), 1.1), torch.full((40_000, 1, 2), 1.3)
    scales = torch.full((40_000,), 0.7, dtype=torch.float64)
    found = outer_sums(Operand.of(outputs), [Operand.of(inputs)], scales, single=True)[0]
    distance = (found - exact_outer(outputs, inputs, scales)).norm()
    allowed = ROUNDOFFS * 2.0**-24 * magnitude(outputs, inputs, scales)
    assert distance <= allowed
    in_turn = np.cumsum(np.full(40_000, np.float32(1.1) * np.float32(0.7) * np.float32(1.3)), dtype=np.float32)[-1]
    assert abs(float(in_turn) - float(found[0, 0])) * 6**0.5 > allowed, "the control"


def test_sums_are_the_same_on_any_number_of_threads():
    outputs, inputs = normal(300, 4, 90), normal(300, 4, 70, seed=1)
    scales, before = normal(300, seed=2, dtype=torch.float64).repeat_interleave(4), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(outer_sums(Operand.of(outputs), [Operand.of(inputs)], scales, single=True)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.usefixtures("way")
def test_nothing_to_add():
    empty = Operand.of(torch.zeros(0, 2, 3))
    assert not outer_sums(empty, [empty], torch.zeros(0).double(), single=True)[0].any()
    assert not row_sum(torch.zeros(0, 3), torch.zeros(0).double(), single=True).any()


@pytest.mark.parametrize("at_once", [1, 7, 1 << 10])
def test_lookups_in_pieces(at_once, monkeypatch):
    monkeypatch.setattr(sums, "_ROWS_AT_ONCE", at_once)
    values, scales = normal(5, 6, 3), normal(5, seed=1, dtype=torch.float64)
    indices = torch.randint(0, 4, (5, 6), generator=torch.Generator().manual_seed(2))
    found = lookup_sum(values, indices, scales, 9)
    expected = torch.zeros(9, 3, dtype=torch.float64)
    for example in range(5):
        for place in range(6):
            expected[indices[example, place]] += scales[example] * values[example, place].double()
    assert torch.allclose(found, expected, rtol=1e-14, atol=1e-14)
