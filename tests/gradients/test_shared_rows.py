"""Outputs of shape (1, ...) that broadcast onto a batch, such as embeddings of positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine
from tests.gradients.gradient_oracle import assert_close, assert_engine_exact, by_engine, by_loop, squared_output

ENGINE = BookkeepingEngine()


class Encoder(nn.Module):
    """Words, types and positions as BERT adds them up, one layer of attention, and a classifier."""

    def __init__(self, dropout: float = 0.0, repeated: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions, self.types = nn.Embedding(11, 4), nn.Embedding(9, 4), nn.Embedding(2, 4)
        self.norm, self.dropout = nn.LayerNorm(4), nn.Dropout(dropout)
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 3)
        places = torch.arange(9) // 2 if repeated else torch.arange(9)
        self.register_buffer("position_ids", places.expand(1, -1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids) + self.types(torch.zeros_like(ids))
        hidden += self.positions(self.position_ids[:, : ids.shape[1]])
        return self.head(self.layer(self.dropout(self.norm(hidden)))[:, 0])


def words(count: int, length: int = 5) -> torch.Tensor:
    return torch.randint(0, 11, (count, length), generator=torch.Generator().manual_seed(count))


class TestPositions:
    @pytest.mark.parametrize("count", [1, 2, 7, 70])
    @pytest.mark.parametrize("repeated", [False, True])
    def test_against_the_loop_and_the_reference(self, count, repeated):
        model, examples = Encoder(repeated=repeated).double(), words(count)
        assert_engine_exact(model, examples)
        assert_close(by_engine(ENGINE, model, examples), by_engine(ReferenceEngine(), model, examples))

    def test_single_precision_against_a_loop_in_double(self):
        model, examples = Encoder(), words(9)
        found = by_engine(ENGINE, model, examples)
        expected = by_loop(model.double(), examples)
        assert_close(found, expected, 1e-5)
        assert (found.norms >= expected.norms * (1 - 1e-6)).all()

    def test_frozen(self):
        model = Encoder().double()
        model.positions.requires_grad_(False)
        assert_engine_exact(model, words(7))
        model.requires_grad_(False)
        model.positions.requires_grad_(True)
        assert_engine_exact(model, words(7))

    def test_in_pieces(self):
        model, examples = Encoder().double(), words(40)
        found = by_engine(BookkeepingEngine(physical_batch_size=8), model, examples)
        assert_close(found, by_loop(model, examples))

    def test_an_example_has_the_same_bits_in_every_batch(self):
        model, examples = Encoder(), words(30)
        whole, part = by_engine(ENGINE, model, examples), by_engine(ENGINE, model, examples[3:14])
        np.testing.assert_array_equal(whole.losses[3:14], part.losses)
        np.testing.assert_array_equal(whole.norms[3:14], part.norms)

    def test_dropout_behind_them(self):
        """With the masks that were drawn, the sum is what autograd gives."""
        model, examples = Encoder(0.5).double(), words(16)
        by_engine(ENGINE, model, examples)
        torch.manual_seed(5)
        found = by_engine(ENGINE, model, examples, coefficients=np.ones(16))
        torch.manual_seed(5)
        loss = squared_output(model, examples).sum()
        parts = torch.autograd.grad(loss, list(model.parameters()))
        np.testing.assert_allclose(found.total, torch.cat([part.flatten() for part in parts]), rtol=1e-9, atol=1e-12)

    def test_dropout_on_them_is_drawn_for_each_example(self):
        class Dropped(Encoder):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                rows = self.dropout(self.positions(self.position_ids[:, : ids.shape[1]]))
                return self.head((self.words(ids) + rows).mean(1))

        model = Dropped(0.5).double()
        losses = by_engine(ENGINE, model, words(1).expand(20, -1)).losses
        assert len(set(losses)) > 10


class Added(nn.Module):
    """What a layer makes of one row that all examples share, added to what another makes of each example."""

    def __init__(self, layer: nn.Module, row: torch.Tensor) -> None:
        super().__init__()
        self.layer, self.linear = layer, nn.Linear(3, 2)
        self.register_buffer("row", row)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        shared = self.layer(self.row) if self.row.numel() else self.layer()
        flat = shared.flatten(1).mean(1, keepdim=True) * shared.flatten(1)[:, :2]
        return torch.tanh(self.linear(inputs) + flat)


class Rows(nn.Module):
    """Parameters of its own and no argument."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3))

    def forward(self) -> torch.Tensor:
        return self.rows[None]


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 2, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * self.gain).sin()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("layer", "row"),
    [
        (lambda: nn.Linear(4, 3), normal(1, 4)),
        (lambda: nn.Linear(4, 3), normal(1, 5, 4)),
        (lambda: nn.Linear(40, 30), normal(1, 2, 40)),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), normal(1, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)), normal(1, 3, 4)),
        (lambda: nn.Conv1d(2, 3, 2), normal(1, 2, 5)),
        (lambda: nn.Conv2d(2, 3, 2, stride=2), normal(1, 2, 5, 5)),
        (lambda: nn.Conv2d(2, 4, 3, padding=1, groups=2), normal(1, 2, 9, 9)),
        (lambda: nn.Conv2d(1, 2, 3), normal(1, 1, 14, 14)),
        (lambda: nn.LayerNorm(4), normal(1, 3, 4)),
        (lambda: nn.RMSNorm(4), normal(1, 3, 4)),
        (lambda: nn.GroupNorm(2, 4), normal(1, 4, 3)),
        (lambda: nn.InstanceNorm1d(4, affine=True), normal(1, 4, 3)),
        (lambda: nn.Embedding(4, 3, padding_idx=1), torch.tensor([[0, 1, 2, 2]])),
        (lambda: nn.Embedding(400, 3), torch.tensor([[0, 100, 2]])),
        (Gain, normal(1, 4)),
        (Rows, torch.zeros(0)),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_every_rule(layer, row, count, sizes_unprobed):
    torch.manual_seed(0)
    assert_engine_exact(Added(layer(), row).double(), normal(count, 3))


class PlaceFirst(nn.Module):
    """A layer on sequences of one place, with the places in the first dimension."""

    def __init__(self, back) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.back = nn.Linear(3, 4), nn.Linear(4, 2), back

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.back(self.first(inputs[None]))))


class TestOtherFirstDimensions:
    """What only looks like a row that all examples share is refused, also in a batch of one example."""

    @pytest.mark.parametrize(
        "back",
        [lambda z: z.transpose(0, 1), lambda z: z.squeeze(0), lambda z: z.sum(0)],
        ids=["transposed", "squeezed", "sum"],
    )
    @pytest.mark.parametrize("count", [1, 2, 5, 16])
    def test_refused(self, back, count):
        with pytest.raises(InvalidArgumentError):
            by_engine(ENGINE, PlaceFirst(back).double(), normal(count, 3))

    @pytest.mark.parametrize("count", [1, 2, 5, 16])
    def test_the_first_of_one_place_is_exact(self, count):
        """Its gradients show that examples are in the second dimension."""
        assert_engine_exact(PlaceFirst(lambda z: z[0]).double(), normal(count, 3))

    def test_a_mean_is_right_by_chance_for_one_example_and_refused_for_more(self):
        model = PlaceFirst(lambda z: z.mean(0)).double()
        assert_engine_exact(model, normal(1, 3))
        with pytest.raises(InvalidArgumentError, match="first"):
            by_engine(ENGINE, model, normal(2, 3))

    def test_an_error_says_what_was_assumed(self):
        class Fails(Encoder):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return self.words(ids) + self.positions(self.position_ids[:, : ids.shape[1]]).view(1, -1)

        with pytest.raises(RuntimeError) as raised:
            by_engine(ENGINE, Fails(), words(4))
        assert any("'positions'" in note and "ReferenceEngine" in note for note in raised.value.__notes__)

    @pytest.mark.parametrize("other", [False, True])
    def test_a_row_that_was_picked_from_the_examples_is_refused_in_any_batch(self, other, sizes_unprobed):
        """It comes in a batch out of turn, beside a row that is shared indeed, or not; new shapes are compared."""

        class Picks(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.layer, self.rare, self.row = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                outputs = self.layer(inputs)
                if other:
                    outputs = outputs + self.row(torch.ones(1, 3, dtype=inputs.dtype))
                picked = inputs[inputs[:, 0] > 100]
                return outputs + self.rare(picked).mean() if len(picked) else outputs

        model, examples = Picks().double(), normal(8, 3)
        for _ in range(2):
            by_engine(ENGINE, model, examples)
        examples[2, 0] = 200.0
        with pytest.raises(InvalidArgumentError, match="mix the examples"):
            by_engine(ENGINE, model, examples)
        examples[2, 0] = 0.0
        by_engine(ENGINE, model, examples[:6])
