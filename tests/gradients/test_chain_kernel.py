"""The chain's kernel: what torch computes, for every shape; and torch wherever it is not to be had."""

from __future__ import annotations

import ctypes
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from inosgd.gradients import BookkeepingEngine, ReferenceEngine, calls, compiling, supervised
from inosgd.gradients.rules import chain_kernel
from inosgd.gradients.rules.chain import ACTIVATIONS, ChainRun, Layer
from inosgd.gradients.rules.chain_kernel import WIDEST, KernelRun, agrees, kernel, kernel_run, suited_shape
from inosgd.gradients.rules.forms import OuterProducts
from tests.properties import tries

RELU = ACTIVATIONS[nn.ReLU]
HARNESS = Path(__file__).with_name("kernel_bounds.cpp")
needs_compiler = pytest.mark.skipif(kernel(torch.float64) is None, reason="there is no compiler")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def layers_of(widths, rectified, biased, dtype=torch.float64):
    pairs = zip(pairwise(widths), rectified, biased, strict=True)
    return [
        Layer(
            nn.Parameter(normal(outputs, inputs, seed=index, dtype=dtype)),
            nn.Parameter(normal(outputs, seed=10 + index, dtype=dtype)) if bias else None,
            RELU if relu else None,
        )
        for index, ((inputs, outputs), relu, bias) in enumerate(pairs)
    ]


def two_layers(*widths: int, activation=RELU) -> list[Layer]:
    return [each._replace(activation=activation) for each in layers_of(widths, [True] * 2, [True] * 2)]


@st.composite
def shapes(draw):
    widths = draw(st.lists(st.integers(1, 13), min_size=3, max_size=5))
    flags = st.lists(st.booleans(), min_size=len(widths) - 1, max_size=len(widths) - 1)
    return widths, draw(flags), draw(flags)


@needs_compiler
class TestSameAsTorch:
    @tries(15)
    @given(shape=shapes(), count=st.integers(1, 150), dtype=st.sampled_from([torch.float32, torch.float64]))
    def test_any_shape(self, shape, count, dtype):
        layers = layers_of(*shape, dtype=dtype)
        inputs = normal(count, shape[0][0], seed=1, dtype=dtype)
        gradient = normal(count, shape[0][-1], seed=2, dtype=dtype)
        coefficients, rows = normal(count, seed=3, dtype=torch.float64), torch.arange(0, count, 3)
        tolerance = torch.finfo(dtype).eps ** 0.75

        def close(actual, expected):
            scale = float(expected.abs().max()) if expected.numel() else 1.0
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * max(scale, 1.0))

        found = kernel_run(layers, inputs)
        assert found is not None
        expected = ChainRun(layers, inputs)
        close(found.forward(inputs), expected.forward(inputs))
        close(found.pull(gradient), expected.pull(gradient))
        (actual,), (wanted,) = found.gradients(gradient).values(), expected.gradients(gradient).values()
        close(actual.bounds().norms, wanted.bounds().norms)
        for get in (lambda form: form.weighted_sum(coefficients, single=True), lambda form: form.materialise()):
            for one, other in zip(get(actual), get(wanted), strict=True):
                close(one, other)
        close(actual.select(rows).bounds().norms, wanted.bounds().norms[rows])

    @tries(15)
    @given(
        shape=shapes(),
        count=st.integers(1, 40),
        places=st.integers(2, 7),
        dtype=st.sampled_from([torch.float32, torch.float64]),
    )
    def test_several_rows_per_example(self, shape, count, places, dtype):
        """Bounds are those of forms, above the norms of gradients in float64, and know what is no number."""
        layers = layers_of(*shape, dtype=dtype)
        inputs = normal(count * places, shape[0][0], seed=1, dtype=dtype)
        gradient = normal(count * places, shape[0][-1], seed=2, dtype=dtype)
        gradient[-1] = np.nan
        found = kernel_run(layers, inputs)
        found.forward(inputs)
        (form,) = found.gradients(gradient).values()
        actual, layers = form.folded(places), form.folded(places).apart()
        wanted = [sum(parts) for parts in zip(*[layer.bounds() for layer in layers], strict=True)]
        for one, other in zip(actual.bounds(), wanted, strict=True):
            torch.testing.assert_close(
                one, other, rtol=1e-4 if dtype == torch.float32 else 1e-10, atol=1e-9, equal_nan=True
            )
        exact = [
            OuterProducts(each.outputs.double(), tuple(a.double() for a in each.inputs), each.biases) for each in layers
        ]
        norms = sum(part.flatten(1).square().sum(1) for each in exact for part in each.materialise())
        finite = torch.isfinite(norms)  # a rectifier that is closed keeps even NaN from the layers before it
        assert torch.equal(torch.isfinite(actual.bounds().norms), finite)
        assert (actual.bounds().norms >= norms)[finite].all()

    def test_what_is_no_number_goes_where_torch_sends_it(self):
        layers, inputs = layers_of([3, 4, 4, 2], [True] * 3, [True] * 3), normal(40, 3)
        inputs[7, 0], inputs[8, 1], inputs[9, 2] = torch.nan, torch.inf, -torch.inf
        found, expected, gradient = kernel_run(layers, inputs), ChainRun(layers, inputs), normal(40, 2, seed=1)
        assert found is not None
        torch.testing.assert_close(found.forward(inputs), expected.forward(inputs), equal_nan=True)
        (actual,), (wanted,) = found.gradients(gradient).values(), expected.gradients(gradient).values()
        broken = torch.isin(torch.arange(40), torch.tensor([7, 8, 9]))
        assert not actual.bounds().norms[broken].isfinite().any()
        torch.testing.assert_close(actual.bounds().norms[~broken], wanted.bounds().norms[~broken])

    def test_inputs_gradients_and_coefficients_in_other_layouts(self):
        layers, inputs, gradient = two_layers(3, 5, 2), normal(3, 30).mT, normal(2, 30, seed=1).mT
        found, expected = kernel_run(layers, inputs), ChainRun(layers, inputs)
        assert found is not None
        torch.testing.assert_close(found.forward(inputs), expected.forward(inputs))
        coefficients = normal(60).double()[::2]
        (actual,), (wanted,) = found.gradients(gradient).values(), expected.gradients(gradient).values()
        sums = [form.weighted_sum(coefficients, single=True) for form in (actual, wanted)]
        for one, other in zip(*sums, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

    def test_an_example_is_the_same_to_the_bit_in_any_batch(self):
        """Losses that depend on no other example's presence order examples alike whoever is there."""
        layers, inputs, gradient = two_layers(20, 16, 2), normal(100, 20), normal(100, 2, seed=1)

        def numbers(rows):
            found = kernel_run(layers, inputs[rows])
            assert found is not None
            output = found.forward(inputs[rows])
            (form,) = found.gradients(gradient[rows]).values()
            return torch.cat([output.double(), form.bounds().norms.unsqueeze(1)], dim=1)

        whole = numbers(slice(0, 100))
        for first in (0, 3, 50):
            for last in range(first + 1, 101):
                assert torch.equal(numbers(slice(first, last)), whole[first:last])

    def test_the_same_bits_again_and_for_any_number_of_threads(self):
        layers, inputs, gradient = two_layers(30, 40, 20), normal(100, 30), normal(100, 20, seed=1)

        def norms():
            found = kernel_run(layers, inputs)
            assert found is not None
            found.forward(inputs)
            (form,) = found.gradients(gradient).values()
            return form.bounds().norms

        before = torch.get_num_threads()
        first = norms()
        try:
            torch.set_num_threads(2)
            assert torch.equal(first, norms())
        finally:
            torch.set_num_threads(before)


class TestWhenItIsUsed:
    def test_small_chain_on_the_cpu(self):
        assert isinstance(kernel_run(two_layers(3, 4, 2), normal(5, 3)), KernelRun) == bool(kernel(torch.float64))

    @pytest.mark.parametrize(
        "case", ["wide", "activation", "layout", "half", "nobody", "types", "sizes", "bias", "subclass"]
    )
    def test_not_for(self, case):
        layers, inputs = two_layers(3, 4, 2), normal(5, 3)
        if case == "wide":
            layers = two_layers(3, WIDEST + 1, 2)
        elif case == "activation":
            layers = two_layers(3, 4, 2, activation=ACTIVATIONS[nn.Tanh])
        elif case == "layout":
            layers[0] = layers[0]._replace(weight=nn.Parameter(normal(3, 4).mT))
        elif case == "half":
            inputs = inputs.bfloat16()
        elif case == "nobody":
            inputs = inputs[:0]
        elif case == "types":
            layers[1] = layers[1]._replace(bias=nn.Parameter(normal(2).float()))
        elif case == "sizes":
            layers[1] = layers[1]._replace(weight=nn.Parameter(normal(2, 5)))
        elif case == "bias":
            layers[1] = layers[1]._replace(bias=nn.Parameter(normal(1)))
        elif case == "subclass":
            inputs = inputs.as_subclass(type("Named", (torch.Tensor,), {}))
        assert suited_shape(layers, inputs) is None
        assert kernel_run(layers, inputs) is None

    def test_turned_off(self, monkeypatch):
        monkeypatch.setenv(compiling.SWITCH, "0")
        for each in (kernel, compiling.compiled):
            each.cache_clear()
        try:
            assert kernel(torch.float32) is None
        finally:
            for each in (kernel, compiling.compiled):
                each.cache_clear()


@needs_compiler
class TestItIsChecked:
    """A kernel that computes something else is not used: an engine that is wrong breaks every guarantee."""

    def test_as_built(self):
        assert agrees(kernel(torch.float32), torch.float32)
        assert agrees(kernel(torch.float64), torch.float64)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("broken", ["forward", "backward", "weighted_sum", "folded_bounds"])
    def test_broken(self, broken, dtype):
        """One number that is 0.1 % too small: a typical output or sum, the smallest bound of an example."""
        built = kernel(dtype)
        assert built is not None
        correct, count = getattr(built, broken), 39 * built.lanes + 3
        numbers = {"forward": 2 * count, "backward": count, "weighted_sum": 49 + 63 + 20, "folded_bounds": count // 3}
        kind = ctypes.c_float if broken == "forward" and dtype == torch.float32 else ctypes.c_double
        hurt = []

        def wrong(*addresses):
            result = correct(*addresses)
            written = ctypes.cast(addresses[-1], ctypes.POINTER(kind * numbers[broken])).contents
            found = np.ctypeslib.as_array(written)
            some = np.flatnonzero(np.abs(found) > 1e-12 * np.abs(found).max())
            in_order = some[np.argsort(np.abs(found[some]))]
            place = in_order[len(some) // 2 if broken in ("forward", "weighted_sum") else 0]
            found[place] *= 0.999
            hurt.append(place)
            return result

        assert not agrees(built._replace(**{broken: wrong}), dtype)
        assert hurt

    def test_the_engine_does_without_it(self, monkeypatch):
        monkeypatch.setattr(chain_kernel, "agrees", lambda functions, dtype: False)
        kernel.cache_clear()
        try:
            assert kernel_run(two_layers(3, 4, 2), normal(5, 3)) is None
        finally:
            kernel.cache_clear()


@pytest.fixture(scope="module", params=["-march=native", pytest.param("-mno-avx", marks=pytest.mark.long)])
def bounded(request, tmp_path_factory):
    """The kernel and `HARNESS`, built with sanitizers; without optimization, which takes longer than what it saves."""
    folder, option = tmp_path_factory.mktemp("bounds"), request.param
    command = [os.environ.get("CXX") or "c++", "-std=c++17", "-Wno-psabi", "-fsanitize=address,undefined", option]
    program, empty = folder / "bounds", folder / "empty.cpp"
    built = subprocess.run([*command, f'-DKERNEL="{chain_kernel.SOURCE}"', "-o", program, HARNESS], check=False)
    if built.returncode:
        empty.write_text("int main() {}")
        assert subprocess.run([*command, "-o", folder / "empty", empty], check=False).returncode, (
            "the kernel is at fault"
        )
        pytest.skip(f"the compiler has no sanitizers, or does not know {option}")
    return program


@needs_compiler
class TestBounds:
    """Nothing outside of the arrays is read or written, whatever the width of vectors."""

    def test_within(self, bounded):
        ended = subprocess.run([bounded], capture_output=True, text=True, check=False)
        assert ended.stdout == "within bounds\n", ended.stderr

    def test_control(self, bounded):
        """Without room for the last vector of the last row the sanitizer speaks."""
        ended = subprocess.run([bounded, "no room"], capture_output=True, text=True, check=False)
        assert "ERROR: AddressSanitizer" in ended.stderr  # it has one name for bytes and another for wide vectors
        assert ended.stdout == ""


@needs_compiler
def test_training_by_it_is_training_by_the_reference(monkeypatch):
    """Sums and norms stay those of the reference engine while the model learns."""
    used = []
    monkeypatch.setattr(calls, "kernel_run", lambda *given: used.append(1) or kernel_run(*given))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(21, 47), nn.ReLU(), nn.Linear(47, 47), nn.ReLU(), nn.Linear(47, 3)).double()
    losses = supervised(functional.cross_entropy)
    for step in range(20):
        examples = normal(100 + step, 21, seed=step), torch.arange(100 + step) % 3
        results = []
        for engine in (BookkeepingEngine(), ReferenceEngine()):
            with engine.on(model, losses, examples) as gradients:
                norms = gradients.measure().grad_norms
                results.append((norms, gradients.weighted_sum(np.minimum(1, 1 / norms))))
        np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-12)
        torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-10, atol=1e-12)
        with torch.no_grad():
            nn.utils.vector_to_parameters(
                nn.utils.parameters_to_vector(model.parameters()) - 0.01 * results[0][1], model.parameters()
            )
    assert len(used) >= 20
