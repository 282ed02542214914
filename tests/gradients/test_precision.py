"""Precision that is reduced from outside: off inside an engine, or refused; and what it would have done."""

from __future__ import annotations

import copy
import ctypes
import platform
import threading
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine, precision
from inosgd.gradients.precision import ON_ACCELERATORS, ON_PROCESSORS, full_precision
from tests.gradients.gradient_oracle import by_engine, squared_output

ENGINES = [BookkeepingEngine(), BookkeepingEngine(physical_batch_size=3), ReferenceEngine()]
CPU = torch.device("cpu")


def set_generic(value: str) -> None:
    torch.backends.fp32_precision = value


def set_products(backend: str, operation: str, value: str) -> None:
    getattr(getattr(torch.backends, backend), operation).fp32_precision = value


SETTINGS = {
    "medium": (torch.set_float32_matmul_precision, "medium", "highest"),
    "high": (torch.set_float32_matmul_precision, "high", "highest"),
    "generic": (set_generic, "bf16", "none"),
    "every operation of oneDNN": (lambda v: torch.backends.mkldnn.set_flags(_fp32_precision=v), "bf16", "none"),
    **{
        f"mkldnn {operation} {value}": (lambda v, o=operation: set_products("mkldnn", o, v), value, "none")
        for operation in ("matmul", "conv", "rnn")
        for value in ("bf16", "tf32")
    },
    "nnpack": (lambda v: torch.backends.nnpack.set_flags(v), True, True),
}
"""How to reduce precision, by name: a function, what it is called with, and what undoes it."""


@contextmanager
def reduced(name: str):
    switch, value, back = SETTINGS[name]
    switch(value)
    try:
        yield
    finally:
        switch(back)
        for operation in ("matmul", "conv", "rnn"):
            set_products("mkldnn", operation, "none")


def values(switches=ON_PROCESSORS) -> list:
    return [switch.read() for switch in switches]


def network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 3))
    return model, torch.randn(20, 2, 8, 8)


def same(one, other) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("losses", "norms", "total"))


class TestSettings:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", SETTINGS)
    def test_off_inside_and_back_afterwards(self, name, engine):
        model, examples = network()
        inside = []

        def losses(model: nn.Module, examples: torch.Tensor) -> torch.Tensor:
            inside.append(values())
            return squared_output(model, examples)

        with reduced(name):
            before = values()
            assert any(value not in switch.full for switch, value in zip(ON_PROCESSORS, before, strict=True)), "control"
            by_engine(engine, model, examples, losses)
            assert values() == before
        assert inside
        assert all(value in switch.full for seen in inside for switch, value in zip(ON_PROCESSORS, seen, strict=True))

    def test_what_followed_a_general_setting_follows_it_again(self):
        with reduced("generic"):
            with full_precision(CPU):
                pass
            set_generic("ieee")
            assert values()[:3] == ["ieee"] * 3

    def test_back_after_an_error(self):
        with reduced("medium"):
            with pytest.raises(ZeroDivisionError), full_precision(CPU):
                raise ZeroDivisionError
            assert values()[0] == "bf16"

    def test_refused_if_the_model_sets_one(self):
        model, examples = network()

        def losses(model: nn.Module, examples: torch.Tensor) -> torch.Tensor:
            torch.set_float32_matmul_precision("medium")
            return squared_output(model, examples)

        with reduced("medium"), pytest.raises(InosgdError, match=r"\(mkldnn, matmul\) was set to 'bf16'"):
            by_engine(BookkeepingEngine(), model, examples, losses)

    def test_off_until_the_last_thread_is_out(self):
        first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()
        seen = []

        def second() -> None:
            first_is_in.wait(10)
            with full_precision(CPU):
                second_is_in.set()
                first_is_out.wait(10)
                seen.append(values())

        thread = threading.Thread(target=second)
        with reduced("medium"):
            thread.start()
            with full_precision(CPU):
                first_is_in.set()
                second_is_in.wait(10)
            first_is_out.set()
            thread.join()
            assert seen == [["ieee", "none", "none", False]]
            assert values() == ["bf16", "none", "none", True]


class TestNnpack:
    """Its convolutions, which torch takes if oneDNN is off, are the one reduced precision that most processors have."""

    @pytest.fixture(autouse=True)
    def without_onednn(self):
        if not torch.backends.nnpack.is_available():
            pytest.skip("this processor has no NNPACK")
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            yield

    def test_larger_errors(self):
        torch.manual_seed(0)
        inputs, weight = torch.randn(16, 16, 20, 20), torch.randn(16, 16, 3, 3)
        exact = torch.conv2d(inputs.double(), weight.double())

        def error() -> float:
            return float((torch.conv2d(inputs, weight) - exact).norm() / exact.norm())

        with full_precision(CPU):
            inside = error()
        assert error() > 4 * inside, "control: what it does outside"

    def test_an_example_that_depends_on_the_size_of_its_batch(self):
        """From 16 examples on torch would take it."""
        model, examples = network()
        outside = [squared_output(model, examples[:count]).detach()[:15] for count in (15, 16)]
        assert not torch.equal(*outside), "control"
        inside = [by_engine(BookkeepingEngine(), model, examples[:count]).losses[:15] for count in (15, 16)]
        assert np.array_equal(*inside)


class TestAutocast:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_off_inside(self, engine):
        model, examples = network()
        expected = by_engine(engine, model, examples)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            plain = float(squared_output(model, examples).detach()[0])
            assert abs(plain / expected.losses[0] - 1) > 1e-5, "control: what it does to a loss"
            assert same(by_engine(engine, model, examples), expected)
            assert torch.is_autocast_enabled("cpu")

    @pytest.mark.parametrize("engine", ENGINES)
    def test_sums_keep_to_norms(self, engine):
        """They reached 1.002 times the norm while autocast was not off inside."""
        torch.manual_seed(0)
        model, examples = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(12, 20)
        with torch.autocast("cpu", dtype=torch.bfloat16), engine.on(model, losses_of_own_type, examples) as gradients:
            norms = gradients.measure().grad_norms
            alone = [gradients.weighted_sum(one).double().norm().item() for one in np.eye(len(examples))]
        assert (np.array(alone) <= norms * (1 + 1e-6)).all()

    @pytest.mark.parametrize("frozen", [False, True])
    def test_refused_inside_the_model(self, frozen):
        """Half precision also reaches a layer that itself computes in float32."""
        model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
        model[0].requires_grad_(not frozen)

        def losses(model: nn.Module, examples: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return squared_output(model, examples).float()

        with pytest.raises(InvalidArgumentError, match=rf"module '{int(frozen)}': it computes with torch.bfloat16"):
            by_engine(BookkeepingEngine(), model, torch.randn(5, 4), losses)


class TestSmallestNumbers:
    @pytest.fixture(autouse=True)
    def flushing(self):
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot")
        yield
        torch.set_flush_denormal(False)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_refused(self, engine):
        model, examples = network()
        assert float(torch.full((4,), 1e-39).norm()) == 0, "control: a norm that is lost"
        with pytest.raises(InosgdError, match=r"set_flush_denormal\(False\)"):
            by_engine(engine, model, examples)

    def test_refused_in_threads_that_keep_it(self):
        """Threads of torch's pool have it from the thread that was the first to need them; each thread has a pool."""
        caught, lost = [], []

        def work() -> None:
            torch.set_flush_denormal(True)
            halved(torch.get_num_threads())
            torch.set_flush_denormal(False)
            lost.append(int((halved(2) == 0).sum()))
            with pytest.raises(InosgdError, match="keep what they were started with"), full_precision(CPU):
                pass
            caught.append(True)

        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            in_thread(work)
        finally:
            torch.set_num_threads(threads)
        assert lost[0] > 0, "control: half of a tensor is still lost"
        assert caught

    def test_refused_if_the_model_sets_it(self):
        model, examples = network()
        torch.set_flush_denormal(False)

        def losses(model: nn.Module, examples: torch.Tensor) -> torch.Tensor:
            torch.set_flush_denormal(True)
            return squared_output(model, examples)

        with pytest.raises(InosgdError, match="below 1e-38"):
            by_engine(BookkeepingEngine(), model, examples, losses)


def halved(threads: int) -> torch.Tensor:
    return torch.full((threads << 15,), torch.finfo(torch.float32).tiny) * 0.5


def in_thread(work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def look_again(self):
        precision._check_environment.cache_clear()
        yield
        precision._check_environment.cache_clear()

    @pytest.mark.parametrize("name", ["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"])
    @pytest.mark.parametrize("value", ["BF16", "any", "tf32", "1"])
    def test_refused(self, name, value, monkeypatch):
        monkeypatch.setenv(name, value)
        with pytest.raises(InosgdError, match=f"{name} is '{value}'"), full_precision(CPU):
            pass

    def test_strict_is_full_precision(self, monkeypatch):
        monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "strict")
        with full_precision(CPU):
            pass


class TestDevices:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_untested_ones_are_refused(self, engine):
        model, examples = network()
        with pytest.raises(InvalidArgumentError, match="allow_untested_device='meta'"):
            by_engine(engine, model.to("meta"), examples.to("meta"))

    @pytest.mark.parametrize("allowed", [None, "cpu", "mps", ""])
    def test_the_name_must_be_the_device(self, allowed):
        with (
            pytest.raises(InvalidArgumentError, match="type 'cuda'"),
            full_precision(torch.device("cuda", 1), allow_untested_device=allowed),
        ):
            pass

    @pytest.mark.parametrize("engine", [BookkeepingEngine, ReferenceEngine])
    def test_engines_hand_the_name_on(self, engine):
        model, examples = network()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - nothing can be computed there
            by_engine(engine(allow_untested_device="meta"), model.to("meta"), examples.to("meta"))
        assert not isinstance(caught.value, InvalidArgumentError)

    @pytest.mark.parametrize("precision", ["highest", "high", "medium"])
    def test_tf32_is_off_where_allowed(self, precision):
        """By default cuDNN convolves in TF32."""
        torch.set_float32_matmul_precision(precision)
        try:
            before = values(ON_ACCELERATORS)
            assert "tf32" in before, "control"
            with full_precision(torch.device("cuda"), allow_untested_device="cuda"):
                assert all(switch.read() in switch.full for switch in ON_ACCELERATORS)
            assert values(ON_ACCELERATORS) == before
        finally:
            torch.set_float32_matmul_precision("highest")
            set_products("mkldnn", "matmul", "none")


class TestRounding:
    @pytest.mark.parametrize("direction", ["down", "up", "to zero"])
    def test_refused(self, direction):
        library, directions = ctypes.CDLL(None), {"down": 0x400, "up": 0x800, "to zero": 0xC00}
        if platform.machine() != "x86_64" or not hasattr(library, "fesetround"):
            pytest.skip("directions have other numbers here")
        model, examples = network()
        assert library.fesetround(directions[direction]) == 0
        try:
            with pytest.raises(InosgdError, match="FE_TONEAREST"):
                by_engine(BookkeepingEngine(), model, examples)
        finally:
            library.fesetround(0)


class TestBlocks:
    """A model that passed its checks was trained inside them without gradients, or with others."""

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("block", [torch.inference_mode, torch.autograd.graph.save_on_cpu])
    def test_refused(self, engine, block):
        model, examples = network()
        by_engine(engine, model, examples)
        with block(), pytest.raises(InosgdError, match="take the step outside of it"):
            by_engine(engine, model, examples)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_transforms_are_refused(self, engine):
        model, examples = network()

        def step(scale: torch.Tensor) -> torch.Tensor:
            by_engine(engine, model, examples)
            return scale.sum()

        for transform in (torch.func.grad, torch.func.vmap):
            with pytest.raises(InosgdError, match=r"torch\.func"):
                transform(step)(torch.ones(3))

    def test_hooks_on_saved_tensors_of_the_models_own_are_left_to_it(self):
        model, examples = network()

        def losses(model: nn.Module, examples: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.save_on_cpu():
                return squared_output(model, examples)

        expected = by_engine(BookkeepingEngine(), model, examples)
        assert same(by_engine(BookkeepingEngine(), model, examples, losses), expected)


class TestHarmless:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_default_type(self, engine, dtype):
        model, examples = network()
        expected = by_engine(engine, model, examples, losses_of_own_type)
        torch.set_default_dtype(dtype)
        try:
            assert same(by_engine(engine, model, examples, losses_of_own_type), expected)
        finally:
            torch.set_default_dtype(torch.float32)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("layers", ["convolution", "chain"])
    def test_default_device(self, engine, layers):
        model, examples = network()
        if layers == "chain":
            model, examples = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(7, 4)
        expected = by_engine(engine, copy.deepcopy(model), examples, losses_of_own_type)
        with torch.device("meta"):
            assert same(by_engine(engine, model, examples, losses_of_own_type), expected)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("block", [torch.no_grad, torch.autograd.set_detect_anomaly])
    def test_blocks_that_change_nothing(self, engine, block):
        model, examples = network()
        expected = by_engine(engine, model, examples)
        with warnings.catch_warnings(action="ignore"), block(*[True] * (block is not torch.no_grad)):
            assert same(by_engine(engine, model, examples), expected)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_deterministic_algorithms(self, engine):
        model, examples = network()
        expected = by_engine(engine, model, examples)
        torch.use_deterministic_algorithms(True)
        try:
            assert same(by_engine(engine, model, examples), expected)
        finally:
            torch.use_deterministic_algorithms(False)


def losses_of_own_type(model: nn.Module, examples: torch.Tensor) -> torch.Tensor:
    return model(examples).square().sum(1)
