"""A memory limit: batches of any size pass within it, with the result of the whole batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine
from inosgd.gradients.bookkeeping import SplitBatch
from inosgd.gradients.memory import LiveBytes, examples_that_fit
from inosgd.gradients.task import Task
from tests.gradients.gradient_oracle import Results, assert_close, by_engine, squared_output
from tests.properties import tries

pytestmark = pytest.mark.usefixtures("sizes_unprobed")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def convolutional(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Dropout(dropout), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(128, 3)).double()


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3)).double()


CASES = [(convolutional(), normal(400, 1, 8, 8)), (linear(), normal(400, 64))]


def live_bytes(engine: BookkeepingEngine, model: nn.Module, examples: torch.Tensor) -> tuple[Results, int]:
    by_engine(engine, model, examples)  # what is checked and probed before the first batch is not counted
    with LiveBytes() as live:
        result = by_engine(engine, model, examples)
    assert live.now <= result.total.nbytes + result.losses.nbytes, "nothing but the result stays alive"
    return result, live.peak


@pytest.mark.parametrize(("model", "examples"), CASES, ids=["convolutional", "linear"])
class TestLimit:
    @tries(6)
    @given(share=st.floats(0.001, 1.2), count=st.sampled_from([0, 1, 2, 7, 60]))
    def test_the_result_is_that_of_the_whole_batch(self, model, examples, share, count):
        limit = max(1, int(share * 60 * 8 * 2000))
        whole = by_engine(BookkeepingEngine(), model, examples[:count])
        assert_close(by_engine(BookkeepingEngine(memory_limit=limit), model, examples[:count]), whole, tolerance=1e-12)

    def test_a_batch_of_fifty_times_the_mean_keeps_to_it(self, model, examples, values_unchecked):
        few = examples[:8]
        _, of_few = live_bytes(BookkeepingEngine(), model, few)
        limit = 4 * of_few  # the sum and the index of pieces included, which no limit can do without
        split, used = live_bytes(BookkeepingEngine(memory_limit=limit), model, examples)
        whole, needed = live_bytes(BookkeepingEngine(), model, examples)
        assert used <= limit < needed, "the control: without a limit the batch would not have fitted"
        assert_close(split, whole, tolerance=1e-12)

    def test_no_limit_is_too_small_to_work(self, model, examples):
        task = Task.of(model, squared_output)
        assert examples_that_fit(task, examples, 1) == 1
        tiny = by_engine(BookkeepingEngine(memory_limit=1), model, examples[:9])
        assert_close(tiny, by_engine(BookkeepingEngine(), model, examples[:9]), tolerance=1e-12)

    def test_the_smallest_limit_takes_little_more_than_one_piece(self, model, examples, values_unchecked):
        _, of_piece = live_bytes(BookkeepingEngine(), model, examples[:8])
        _, used = live_bytes(BookkeepingEngine(memory_limit=1), model, examples)
        _, whole = live_bytes(BookkeepingEngine(), model, examples)
        assert used <= 4 * of_piece < whole, "the control: a piece is far from the whole batch"

    def test_more_memory_takes_more_examples(self, model, examples):
        task = Task.of(model, squared_output)
        sizes = [examples_that_fit(task, examples, limit) for limit in (10**5, 10**6, 10**7, 10**12)]
        assert sizes == sorted(sizes)
        assert sizes[-1] > len(examples), "a generous limit splits nothing"


def test_a_split_that_loses_an_example_is_noticed(monkeypatch):
    """The control: the comparison above fails for a sum without its last piece."""
    model, examples = CASES[0]
    whole = by_engine(BookkeepingEngine(), model, examples[:9])
    plain = SplitBatch.weighted_sum

    def forgetful(self, coefficients):
        kept = coefficients.copy()
        kept[-1] = 0
        return plain(self, kept)

    monkeypatch.setattr(SplitBatch, "weighted_sum", forgetful)
    with pytest.raises(AssertionError):
        assert_close(by_engine(BookkeepingEngine(memory_limit=1), model, examples[:9]), whole, tolerance=1e-12)


def test_probing_draws_no_random_numbers():
    model, examples = convolutional(dropout=0.5), normal(6, 1, 8, 8)
    results = []
    for engine in (BookkeepingEngine(), BookkeepingEngine(memory_limit=10**9)):
        torch.manual_seed(1)
        results.append(by_engine(engine, model, examples))
    assert_close(*results, tolerance=0)


@pytest.mark.usefixtures("values_unchecked")
def test_smaller_of_two_limits():
    model, examples, seen = linear(), normal(40, 64), []

    def losses(model, batch):
        seen.append(len(batch))
        return squared_output(model, batch)

    engine = BookkeepingEngine(physical_batch_size=16, memory_limit=10**9)
    by_engine(engine, model, examples, losses)
    seen.clear()
    by_engine(engine, model, examples, losses, coefficients=np.zeros(40))
    assert seen == [16, 16, 16], "the last piece repeats its last example"


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_limits_are_whole(limit):
    with pytest.raises(InvalidArgumentError, match="memory_limit"):
        BookkeepingEngine(memory_limit=limit)
