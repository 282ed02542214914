"""Sums over examples keep to the bounds that their module states."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inosgd.gradients.rules import forms, sums
from inosgd.gradients.rules.sums import Operand, lookup_sum, outer_sums, row_sum
from inosgd.rounding import ROUNDOFFS
from tests.properties import tries

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


@tries(15)
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


@pytest.mark.usefixtures("way")
def test_long_sums_of_equal_rows():
    """The same of rows, whose chains are a constant of another loop."""
    values, scales = torch.full((30_000, 2), 1.1), torch.full((30_000,), 0.7, dtype=torch.float64)
    exact, target = 30_000 * Fraction(0.7) * Fraction(float(values[0, 0])), torch.zeros(2, dtype=torch.float64)
    sums.held_sums([(values, target)], scales, single=True)
    for found in (target, row_sum(values, scales, single=True)):
        assert abs(Fraction(float(found[0])) - exact) <= Fraction(ROUNDOFFS) * Fraction(2) ** -24 * exact


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


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("held", [True, False])
def test_many_rows_too_small_for_the_sum_they_are_added_to(held):
    """One in 24, so that each is added to the sum by itself and lost: as many roundings as there can be."""
    count, small = 1 << 16, 2.0**-53
    values, scales = torch.zeros(count, 1, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    values[::24] = small
    values[0] = 1
    if held:
        found = torch.full((1,), torch.nan, dtype=torch.float64)
        sums.held_sums([(values, found)], scales, single=False)
    else:
        found = row_sum(values, scales, single=False)
    exact = 1 + (count - 1) // 24 * Fraction(small)
    assert abs(Fraction(float(found[0])) - exact) <= Fraction(2) ** -42 * exact
    assert exact - 1 > Fraction(2) ** -42 * exact, "the control"


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("widths", [(70, (5, 33)), (9, (40, 64))])
@pytest.mark.usefixtures("way")
def test_several_sums_with_one_output_gradient(single, widths):
    """Rows are shared among threads where there are more of them, columns otherwise; a bias is one more sum."""
    outputs = normal(60, 5, widths[0])
    inputs = [normal(60, 5, width, seed=seed) for seed, width in enumerate(widths[1], 1)]
    scales = normal(60, seed=9, dtype=torch.float64)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            operands = [Operand.of(each) for each in inputs]
            spread = scales.repeat_interleave(5)
            found.append(outer_sums(Operand.of(outputs), operands, spread, biased=True, single=single))
    finally:
        torch.set_num_threads(before)
    unit = ROUNDOFFS * 2.0**-24 if single else 2.0**-42
    for part, seen in zip(found[0], [*inputs, torch.ones(60, 5, 1)], strict=True):
        wanted = exact_outer(outputs, seen, scales).view(part.shape)
        assert (part - wanted).norm() <= unit * magnitude(outputs, seen, scales)
    if sums.kernel() is not None:
        assert all(torch.equal(one, other) for one, *others in zip(*found, strict=True) for other in others)


def square_norms(values: torch.Tensor) -> list[Fraction]:
    return [sum((Fraction(float(x)) ** 2 for x in row), Fraction(0)) for row in values.reshape(len(values), -1)]


@tries(10)
@given(
    width=st.integers(0, 80),
    size=st.sampled_from([1e-44, 1e-30, 1.0, 1e15]),
    dtype=st.sampled_from(TYPES),
    seed=st.integers(0, 99),
)
def test_squares_are_at_least_those_of_real_numbers_and_close_to_them(width, size, dtype, seed):
    values = (normal(4, width, seed=seed, dtype=torch.float64) * size).to(dtype)
    found = forms.squares(values)
    for part, exact in zip(found.tolist(), square_norms(values), strict=True):
        assert exact <= Fraction(part)
    if sums.kernel() is not None and width:
        closest = [float(exact) * (1 + 1e-12) + 1e-300 for exact in square_norms(values)]
        assert (found <= torch.tensor(closest, dtype=torch.float64)).all()


def test_squares_without_what_they_are_raised_by_would_be_too_small():
    """The control: sums of squares in float64 as they are computed are below the real ones for some rows."""
    values = normal(200, 37, dtype=torch.float64)
    plain = values.square().sum(1).tolist()
    assert any(Fraction(part) < exact for part, exact in zip(plain, square_norms(values), strict=True))


@pytest.mark.usefixtures("way")
def test_squares_too_large_for_their_type_are_infinite():
    values = torch.tensor([[1.0, 2.0**64], [1.0, 2.0**63], [1.0, float("nan")], [0.0, -float("inf")]])
    assert forms.squares(values).isfinite().tolist() == [False, True, False, False]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.usefixtures("way")
def test_squares_of_pixels_in_any_layout(layout):
    images = normal(3, 5, 4, 7).contiguous(memory_format=layout)
    for part in (images, images[:, :, 1:, ::2], images[1:]):
        found, exact = forms.pixel_squares(part), part.double().square().sum(1)
        assert (found >= exact * (1 - 1e-15)).all()
        assert torch.allclose(found, exact, rtol=1e-4)


@pytest.mark.usefixtures("way")
def test_a_row_that_many_places_look_up():
    """Equal numbers, so that all errors have one sign."""
    values, indices = torch.full((3000, 2, 3), 0.1), torch.zeros(3000, 2, dtype=torch.int32)
    found = lookup_sum(values, indices, torch.full((3000,), 0.3, dtype=torch.float64), 2)
    exact = 6000 * Fraction(0.3) * Fraction(float(torch.tensor(0.1)))
    assert abs(Fraction(float(found[0, 0])) - exact) <= Fraction(2) ** -42 * exact
    assert not found[1].any()


class TestPairBounds:
    """Norms of sums of outer products, by the kernel: never below the exact ones, whatever the numbers."""

    @tries(25)
    @given(
        count=st.integers(1, 4),
        places=st.integers(1, 11),
        widths=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20)),
        scales=st.tuples(*[st.floats(-24, 18)] * 2),
        biases=st.integers(0, 2),
        dtype=st.sampled_from(TYPES),
        cancelling=st.booleans(),
    )
    def test_they_are_at_least_the_norms_and_close(self, count, places, widths, scales, biases, dtype, cancelling):
        if sums.kernel() is None:
            pytest.skip("there is no compiler here")
        d, *inputs = (normal(count, places, width, seed=seed, dtype=dtype) for seed, width in enumerate(widths))
        if cancelling:
            d = torch.cat([d, -d], 1)
            inputs = [torch.cat([each, each], 1) for each in inputs]
        d, inputs = d * 10.0 ** scales[0], [each * 10.0 ** scales[1] for each in inputs]
        if dtype == torch.float32 and max(scales) > 15:
            return  # squares may be infinite, which a test below is about
        norms, magnitudes = sums.pair_bounds(d, inputs, biases)
        seen = [each.double() for each in inputs] + [torch.ones(*d.shape[:2], 1).double()] * biases
        exact = sum(torch.einsum("bto,bti->boi", d.double(), each).square().sum((1, 2)) for each in seen)
        of_a = sum(each.square().sum(2) for each in seen)
        lengths = (d.double().square().sum(2) * of_a).sqrt().sum(1).square()
        assert (norms >= exact * (1 - 1e-14)).all()
        assert (magnitudes >= lengths * (1 - 1e-14)).all()
        kind = torch.finfo(dtype)
        room = (sum(widths) + biases + 4 * places + 20) * kind.eps
        tiny = kind.tiny * 1e4 * (1 + (d.double().abs().sum() + sum(each.abs().sum() for each in seen)) ** 2)
        assert (norms <= exact + room * lengths + tiny).all()

    def test_they_agree_with_those_of_torch(self):
        d, a = normal(3, 9, 37), normal(3, 9, 21, seed=1)
        by_torch = forms.pair_bounds(d @ d.mT, a @ a.mT + 1, 37, 22)
        norms, magnitudes = sums.pair_bounds(d, [a], 1) or by_torch
        assert torch.allclose(norms, by_torch.norms, rtol=1e-5)
        assert torch.allclose(magnitudes, by_torch.magnitudes, rtol=1e-5)

    @pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
    def test_what_is_not_finite_is_not_measured_as_anything_else(self, value):
        d, a = normal(3, 5, 6), normal(3, 5, 7, seed=1)
        d[1, 4, 5] = value
        found = forms.OuterProducts(d, (a,), 1).bounds().norms
        assert torch.isfinite(found).tolist() == [True, False, True]

    def test_an_example_has_the_same_bits_in_any_batch_and_layout(self):
        d, a = normal(7, 13, 19), normal(7, 13, 33, seed=1)
        whole = forms.OuterProducts(d, (a,), 1).bounds().norms
        moved = forms.OuterProducts(d.transpose(0, 1).contiguous().transpose(0, 1), (a.mT.contiguous().mT,), 1)
        assert torch.equal(moved.bounds().norms, whole)
        for row in range(7):
            one = forms.OuterProducts(d[row : row + 1], (a[row : row + 1],), 1)
            assert torch.equal(one.bounds().norms, whole[row : row + 1])

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("small", [2.0**-13.9, 2.0**-14.2])
    def test_many_products_too_small_for_the_sum_they_are_added_to(self, dtype, small):
        """All are lost if they are added one by one to a sum of the first: in float64 more than the bound leaves."""
        if sums.kernel() is None:
            pytest.skip("there is no compiler here")
        d = torch.full((1, 2000, 1), small, dtype=dtype)
        d[0, :8] = 1
        exact = sum(Fraction(float(x)) ** 2 for x in d.flatten()) ** 2
        assert Fraction(float(sums.pair_bounds(d, [d], 0)[0][0])) >= exact
        room = (2 + 2 * 2000 + 8) * Fraction(2) ** -53 * Fraction(17, 16) * exact
        assert 1992**2 * Fraction(small) ** 4 > room, "the control: they are more than what is left for roundings"

    def test_a_bound_without_room_is_too_small(self):
        """The control: contributions that cancel leave nothing in the two matrices."""
        half = normal(1, 40, 30) * 1e3
        d, a = torch.cat([half, -half], 1), torch.cat([normal(1, 40, 20, seed=1)] * 2, 1)
        d[0, 0, 0] += 1e-2
        exact = torch.einsum("bto,bti->boi", d.double(), a.double()).square().sum()
        plain = ((d @ d.mT) * (a @ a.mT)).sum().double()
        assert abs(plain - exact) > 0.1 * exact
        assert forms.OuterProducts(d, (a,)).bounds().norms[0] >= exact


@tries(15)
@given(
    count=st.integers(1, 3),
    channels=st.integers(1, 35),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    last=st.booleans(),
    dtype=st.sampled_from(TYPES),
)
def test_gradients_of_single_channels(count, channels, size, kernel, stride, padding, last, dtype):
    """What a depthwise convolution's weight gets from every example, in both layouts of images."""
    layout = torch.channels_last if last else torch.contiguous_format
    inputs = normal(count, channels, *size, dtype=dtype).contiguous(memory_format=layout)
    weight = normal(channels, 1, *kernel, seed=1, dtype=dtype).requires_grad_()
    output = torch.nn.functional.conv2d(inputs, weight, None, stride, padding, 1, channels)
    gradient = normal(*output.shape, seed=2, dtype=dtype).contiguous(memory_format=layout)
    found = sums.channel_gradients(inputs, gradient, (kernel, stride, padding, (1, 1)))
    if found is None:
        pytest.skip("there is no compiler here")
    for row in range(count):
        one = torch.nn.functional.conv2d(inputs[row : row + 1], weight, None, stride, padding, 1, channels)
        (wanted,) = torch.autograd.grad(one, weight, gradient[row : row + 1])
        tolerance = 1e-4 if dtype == torch.float32 else 1e-11
        assert torch.allclose(found[row].view(weight.shape), wanted, rtol=tolerance, atol=tolerance)


class TestExampleSums:
    """Gradients that are held, by the kernel: those of real numbers but for roundings, and no one else's."""

    @tries(20)
    @given(
        count=st.integers(1, 4),
        places=st.sampled_from([1, 2, 5, 8, 23, 300, 700]),
        widths=st.tuples(st.integers(1, 70), st.integers(1, 40), st.integers(1, 20)),
        layout=st.permutations([0, 1, 2]),
        size=st.sampled_from([1e-30, 1.0, 1e15]),
        biased=st.booleans(),
        dtype=st.sampled_from(TYPES),
    )
    def test_any_shape_and_layout(self, count, places, widths, layout, size, biased, dtype):
        back = [layout.index(axis) for axis in range(3)]
        d, *inputs = (
            (normal(count, places, width, seed=seed, dtype=dtype) * size).permute(*layout).contiguous().permute(*back)
            for seed, width in enumerate(widths)
        )
        found = sums.example_sums(Operand.of(d), [Operand.of(each) for each in inputs], count, biased=biased)
        if found is None:
            pytest.skip("there is no compiler here")
        seen = [each.double() for each in inputs] + [torch.ones(count, places, 1).double()] * biased
        for part, each in zip(found, seen, strict=True):
            exact = torch.einsum("bto,bti->boi", d.double(), each)
            most = torch.einsum("bto,bti->boi", d.double().abs(), each.abs())
            kind = torch.finfo(dtype)
            room = (places + 2) * kind.eps * most + 2 * places * kind.tiny
            assert part.dtype == dtype
            assert ((part.view(exact.shape) - exact).abs() <= room).all()

    @pytest.mark.parametrize("value", [float("inf"), float("nan")])
    def test_what_is_not_finite_stays_in_its_example_and_its_row(self, value):
        d, a = normal(3, 13, 37), normal(3, 13, 33, seed=1)
        d[1, 12, 36] = value
        (found,) = sums.example_sums(Operand.of(d), [Operand.of(a)], 3) or [d.mT @ a]
        finite = torch.isfinite(found)
        assert finite[0].all()
        assert finite[2].all()
        assert finite[1, :36].all()
        assert not finite[1, 36].any()

    def test_an_example_has_the_same_bits_in_any_batch_and_on_any_number_of_threads(self):
        d, a, before = normal(7, 300, 40), normal(7, 300, 70, seed=1), torch.get_num_threads()
        whole = forms.OuterProducts(d, (a,), 2).materialise()
        try:
            torch.set_num_threads(3)
            again = forms.OuterProducts(d, (a,), 2).materialise()
        finally:
            torch.set_num_threads(before)
        for part, other in zip(whole, again, strict=True):
            assert torch.equal(part, other)
        if sums.kernel() is not None:
            for row in range(7):
                alone = forms.OuterProducts(d[row : row + 1], (a[row : row + 1],), 2).materialise()
                assert all(torch.equal(one[0], part[row]) for one, part in zip(alone, whole, strict=True))

    def test_a_place_that_is_left_out_would_be_seen(self):
        """The control: the room for roundings is less than what one of 700 places adds."""
        d, a = normal(1, 700, 5), normal(1, 700, 4, seed=1)
        room = 702 * torch.finfo(torch.float32).eps * (d.abs().mT @ a.abs())
        assert ((d.mT @ a - d[:, 1:].mT @ a[:, 1:]).abs() > room).any()

    @pytest.mark.usefixtures("way")
    def test_no_examples(self):
        found = forms.OuterProducts(torch.zeros(0, 3, 4), (torch.zeros(0, 3, 5),), 1).materialise()
        assert [tuple(each.shape) for each in found] == [(0, 4, 5), (0, 4)]

    @pytest.mark.usefixtures("way")
    def test_no_places(self):
        """Sequences of length 0: a division by their length would end the process."""
        found = forms.OuterProducts(torch.zeros(3, 0, 4), (torch.zeros(3, 0, 5),), 1).materialise()
        assert [tuple(each.shape) for each in found] == [(3, 4, 5), (3, 4)]
        assert not any(each.any() for each in found)


@tries(20)
@given(
    count=st.integers(1, 3),
    groups=st.integers(1, 4),
    together=st.integers(1, 5),
    width=st.sampled_from([1, 3, 16, 49, 300]),
    size=st.sampled_from([1e-30, 1.0, 1e15]),
    dtype=st.sampled_from(TYPES),
)
def test_sums_of_normalised_inputs(count, groups, together, width, size, dtype):
    """Over pixels with a mean for several channels, and over places with a mean each, within roundings."""
    channels, kind = groups * together, torch.finfo(dtype)
    a, d = (normal(count, channels, width, seed=seed, dtype=dtype) for seed in (1, 2))
    a, d = a * size + 3 * size, d / size
    of_groups = [normal(count, groups, seed=seed, dtype=dtype) for seed in (3, 4)]
    of_places = [normal(count, channels, seed=seed, dtype=dtype) for seed in (5, 6)]
    for means, scales, over in ((*of_groups, True), (*of_places, False)):
        means = means * size
        found = sums.normal_sums(a, d, means, scales, over_pixels=over)
        if found is None:
            pytest.skip("there is no compiler here")
        m, s = (each.repeat_interleave(channels // each.shape[1], 1).unsqueeze(2).double() for each in (means, scales))
        dim, normed = (2 if over else 1), (a.double() - m) * s
        wanted, most = (
            (d.double() * normed).sum(dim),
            (d.double().abs() * (a.double().abs() + m.abs()) * s.abs()).sum(dim),
        )
        room = (max(width, channels) + 6) * kind.eps
        assert ((found[0] - wanted).abs() <= room * most + 1e3 * kind.tiny).all()
        assert ((found[1] - d.double().sum(dim)).abs() <= room * d.double().abs().sum(dim) + 1e3 * kind.tiny).all()
        alone = sums.normal_sums(a[:1], d[:1], means[:1], scales[:1], over_pixels=over)
        assert all(torch.equal(one[0], part[0]) for one, part in zip(alone, found, strict=True))


@pytest.mark.parametrize("over", [True, False])
def test_a_pixel_of_a_normalised_input_that_is_left_out_would_be_seen(over):
    """The control: the room for roundings is less than what one of 300 pixels adds, or another's mean changes."""
    shape = (2, 4, 300) if over else (2, 300, 4)
    a, d = normal(*shape), normal(*shape, seed=1)
    means, scales = normal(2, shape[1], seed=2), normal(2, shape[1], seed=3).abs() + 0.1
    dim, eps = (2 if over else 1), torch.finfo(torch.float32).eps
    normed = (a.double() - means.unsqueeze(2)) * scales.unsqueeze(2)
    most = (d.double().abs() * (a.double().abs() + means.unsqueeze(2).abs()) * scales.unsqueeze(2)).sum(dim)
    wanted, room = (d.double() * normed).sum(dim), 306 * eps * most
    last = (d.double() * normed).select(dim, -1)
    assert (last.abs() > room).any()
    assert (d.double().select(dim, -1).abs() > 306 * eps * d.double().abs().sum(dim)).any()
    turned = (a.double() - means.roll(1, 1).unsqueeze(2)) * scales.unsqueeze(2)
    assert (((d.double() * turned).sum(dim) - wanted).abs() > room).any()
    found = sums.normal_sums(a, d, means, scales, over_pixels=over)
    assert found is None or ((found[0] - wanted).abs() <= room).all()


class TestWhatIsHeld:
    """Many tensors in one call: to the bit what each would give by itself."""

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("single", [True, False])
    @pytest.mark.usefixtures("way")
    def test_sums_and_squares(self, dtype, single):
        shapes = [(5,), (3, 7), (1,), (300, 200), (0,), (40, 3, 3)]
        tensors = [normal(9, *shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]
        tensors.append(normal(6, 9, seed=7, dtype=dtype).mT)
        scales, before = normal(9, seed=8, dtype=torch.float64), torch.get_num_threads()
        unit = ROUNDOFFS * 2.0**-24 if single and dtype == torch.float32 else 2.0**-42
        found = []
        try:
            for threads in (1, 3):
                torch.set_num_threads(threads)
                targets = [torch.full(each.shape[1:], torch.nan, dtype=torch.float64) for each in tensors]
                sums.held_sums(zip(tensors, targets, strict=True), scales, single=single)
                found.append(targets)
        finally:
            torch.set_num_threads(before)
        for values, target, again in zip(tensors, *found, strict=True):
            exact = torch.einsum("b,bx->x", scales, values.double().flatten(1)).view(target.shape)
            most = float((scales.abs() * values.double().flatten(1).norm(dim=1)).sum())
            assert (target - exact).norm() <= unit * most
            assert torch.equal(target, again)
        wanted = sum(forms.squares(each) for each in tensors)
        assert torch.allclose(forms.held_bounds(tensors).norms, wanted, rtol=1e-14)
        for row in range(9):
            alone = forms.held_bounds([each[row : row + 1] for each in tensors[:-1]]).norms
            assert torch.equal(alone[0], forms.held_bounds(tensors[:-1]).norms[row])

    @pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
    @pytest.mark.usefixtures("way")
    def test_what_is_not_finite_is_not_measured_as_anything_else(self, value):
        tensors = [normal(3, 4), normal(3, 40, seed=1)]
        tensors[1][1, 17] = value
        assert forms.held_bounds(tensors).norms.isfinite().tolist() == [True, False, True]

    @pytest.mark.usefixtures("way")
    def test_they_are_at_least_the_exact_norms(self):
        tensors = [normal(200, 37, dtype=torch.float64), normal(200, 3, dtype=torch.float64) * 1e-170]
        exact = [one + other for one, other in zip(*map(square_norms, tensors), strict=True)]
        assert all(
            part <= Fraction(bound)
            for part, bound in zip(exact, forms.held_bounds(tensors).norms.tolist(), strict=True)
        )

    @pytest.mark.usefixtures("way")
    @pytest.mark.parametrize("together", [True, False])
    def test_many_numbers_too_small_for_the_sum_they_are_added_to(self, together):
        """Squares of single numbers, each less than half of the last place of the sum, and all of them lost."""
        tensors = [torch.ones(1, 1)] + [torch.full((1, 1), 2.0**-26.5 * 0.9999)] * 1000
        exact = sum(number for each in tensors for number in square_norms(each))
        assert exact > 1 + 900 * Fraction(2) ** -53, "the control: they are not nothing"
        parts = [forms.held_bounds([each]) for each in tensors]
        found = forms.held_bounds(tensors) if together else forms.added(parts)
        assert Fraction(float(found.norms[0])) >= exact

    @pytest.mark.usefixtures("way")
    @pytest.mark.parametrize(("rows", "width"), [(1, 6), (8, 6), (1, 6000), (8, 6000), (10, 6)])
    def test_gradients_of_other_numbers_of_rows_are_not_read_past_their_end(self, rows, width):
        """What a rule returns that somebody has written may be wrong in any way."""
        target, others = torch.zeros(width, dtype=torch.float64), [normal(9, width), normal(rows, width, seed=1)]
        with pytest.raises(RuntimeError, match=f"{rows} rows of gradients for 9 coefficients"):
            sums.held_sums([(others[1], target)], torch.ones(9, dtype=torch.float64), single=False)
        if sums.kernel() is not None:
            assert sums.held_squares(others) is None

    @pytest.mark.usefixtures("way")
    def test_gradients_of_other_shapes_than_their_parameter_are_not_taken_for_its_own(self):
        target, scales = torch.zeros(6, dtype=torch.float64), torch.ones(9, dtype=torch.float64)
        for shape in ((3,), (12,), (2, 3), (1, 6)):
            with pytest.raises(RuntimeError, match=r"doesn't match the broadcast shape|must match"):
                sums.held_sums([(normal(9, *shape), target)], scales, single=True)

    @pytest.mark.usefixtures("way")
    @pytest.mark.parametrize("count", [1, 2, 7, 30])
    def test_no_tensor_and_no_number_is_left_out(self, count):
        """Each is as large as all before it, at the end of a row of any width."""
        tensors = [torch.zeros(3, width + 1) for width in range(count)]
        for place, each in enumerate(tensors):
            each[:, -1] = 2.0 ** (place / 2) * torch.tensor([1.0, 2.0, 3.0])
        exact = torch.tensor([[float(x) for x in square_norms(each)] for each in tensors]).double().sum(0)
        assert torch.allclose(forms.held_bounds(tensors).norms, exact, rtol=1e-4)
        if sums.kernel() is not None:
            assert torch.allclose(sums.held_squares(tensors), exact, rtol=1e-6)

    @pytest.mark.usefixtures("way")
    @pytest.mark.parametrize("size", [1e-155, 1e-162, 1e-170, 5e-324])
    def test_squares_below_the_smallest_number_are_covered(self, size):
        tensors = [normal(20, width, seed=width, dtype=torch.float64) * size for width in (1, 9, 37)]
        exact = [sum(parts) for parts in zip(*map(square_norms, tensors), strict=True)]
        for found in (forms.held_bounds(tensors).norms, sum(map(forms.squares, tensors))):
            assert all(part <= Fraction(bound) for part, bound in zip(exact, found.tolist(), strict=True))
        plain = sum(each.square().sum(1) for each in tensors).tolist()
        assert any(Fraction(bound) < part for part, bound in zip(exact, plain, strict=True)), "the control"
