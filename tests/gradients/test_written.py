"""What a forward pass writes to is named, in every pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine
from inosgd.gradients.written import same_contents, tables_of, unwritten
from tests.gradients.conftest import leave_values_unchecked
from tests.gradients.test_values import CROSS_ENTROPY, examples, on


class Remembers(nn.Module):
    """A model whose forward pass does something to itself if there are many examples."""

    def __init__(self, write, more_than: int = 0) -> None:
        super().__init__()
        self.layer, self.write, self.more_than = nn.Linear(6, 3), write, more_than
        self.register_buffer("seen", torch.zeros(6))
        self.register_buffer("nothing", None)
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, inputs):
        if len(inputs) > self.more_than:
            with torch.no_grad():
                self.write(self, inputs.mean(0))
        return self.layer(inputs)


def _another(model, mean):
    model.seen = mean


WRITES = {
    "in place": (lambda model, mean: model.seen.add_(mean), "buffer 'seen'"),
    "another": (_another, "buffer 'seen'"),
    "past the count": (lambda model, mean: model.seen.data.add_(mean), "buffer 'seen'"),
    "by numpy": (lambda model, mean: model.seen.numpy().__iadd__(1.0), "buffer 'seen'"),
    "frozen": (lambda model, mean: model.frozen.add_(mean), "parameter 'frozen'"),
    "trained": (lambda model, mean: model.layer.bias.add_(mean[:3]), r"parameter 'layer\.bias'"),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("more_than", [0, 3])
def test_refused_on_the_first_batch(name, more_than):
    write, where = WRITES[name]
    with pytest.raises(InvalidArgumentError, match=f"{where} changed during a forward pass"):
        on(BookkeepingEngine(), Remembers(write, more_than), CROSS_ENTROPY, examples())


@pytest.mark.parametrize("name", ["in place", "another", "frozen", "trained"])
def test_refused_in_any_later_batch(name, monkeypatch):
    """Also where values are not checked."""
    leave_values_unchecked(monkeypatch)
    write, where = WRITES[name]
    model = Remembers(lambda model, mean: None)
    for _ in range(2):
        on(BookkeepingEngine(), model, CROSS_ENTROPY, examples())
    model.write = write
    with pytest.raises(InvalidArgumentError, match=f"{where} changed"):
        on(BookkeepingEngine(), model, CROSS_ENTROPY, examples())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.float64, torch.complex128])
def test_contents_of_any_type(dtype):
    model = nn.Module()
    model.register_buffer("one", torch.zeros((), dtype=dtype))
    model.register_buffer("many", torch.zeros(3, 2, dtype=dtype).mT)
    with same_contents(model):
        model.many.data.copy_(torch.zeros(2, 3))
    for name in ("one", "many"):
        with pytest.raises(InvalidArgumentError, match=f"buffer '{name}'"), same_contents(model):
            getattr(model, name).data.add_(torch.ones(2, 3, dtype=dtype)[0, 0])


def test_buffers_made_in_inference_mode():
    model = nn.Module()
    with torch.inference_mode():
        model.register_buffer("constant", torch.ones(2))
    with unwritten(model, tables_of(model)):
        pass
    with pytest.raises(InvalidArgumentError, match="'constant'"), unwritten(model, tables_of(model)):
        model.constant = torch.ones(2)
