"""Parameters outside layers with rules: functions of them, and weights that layers share, against single examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine
from inosgd.gradients.rules import Lookups, Summed, carried, mapped, watch
from tests.gradients.gradient_oracle import assert_close, assert_engine_exact, by_engine, by_loop, squared_output

ENGINE = BookkeepingEngine()

pytestmark = pytest.mark.usefixtures("sizes_unprobed")


class Around(nn.Module):
    """A function of a model with these parameters and modules, and of a batch."""

    def __init__(self, function, **parts) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)
        self.function = function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self, inputs)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def relative_bias(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A table of biases by distance, as Swin and BEiT add them to attention."""
    bias = m.table[(torch.arange(5)[:, None] - torch.arange(5) + 4).flatten()].view(5, 5, -1).permute(2, 0, 1)
    x = x.unsqueeze(1).expand(-1, 2, -1, -1)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=bias.contiguous().unsqueeze(0))


def buckets(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The same by an embedding of pairs of places, as T5 has it."""
    pairs = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1]) + 4
    scores = x @ x.mT + m.bias(pairs).permute(2, 0, 1).unsqueeze(0)[:, 0]
    return torch.softmax(scores, -1) @ m.linear(x)


def attention(mask):
    """Attention by the weights of one's own layers, with biases put together and a mask, as WavLM has it."""

    def forward(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        places = (x @ m.mix).transpose(0, 1)
        maps = m.q, m.k, m.v
        mixed, _ = F.multi_head_attention_forward(
            *[places] * 3,
            *(4, 2, torch.empty(0), torch.cat([each.bias for each in maps]), None, None, False, 0.0),
            m.out.weight,
            m.out.bias,
            attn_mask=mask(m, x),
            use_separate_proj_weight=True,
            **{f"{name}_proj_weight": each.weight for name, each in zip("qkv", maps, strict=True)},
        )
        return mixed.transpose(0, 1)

    return forward


def gated(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A relative bias for each example and head, as much of it as the example asks for."""
    bias = m.table.unsqueeze(0).repeat(len(x), 1, 1, 1).view(-1, x.shape[1], x.shape[1])
    return x.sum((1, 2)).sigmoid().repeat_interleave(2).view(-1, 1, 1) * bias


ATTENTION: dict[str, torch.Tensor | nn.Module] = {"mix": normal(3, 4), "table": normal(2, 5, 5)}
ATTENTION.update({name: nn.Linear(4, 4) for name in ("q", "k", "v", "out")})


def class_token(expand):
    def forward(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([expand(m.token, len(x)), x], 1) + m.positions
        return m.linear(tokens) * m.scale

    return forward


def cell(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    state = None
    for time in range(x.shape[1]):
        state = m.cell(x[:, time], state)
    return state[0] if isinstance(state, tuple) else state


class Doubled(torch.autograd.Function):
    """A view whose gradient is twice that of a view."""

    @staticmethod
    def forward(ctx, values):
        return values.view(1, 1, -1)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient.view(-1)


TOKENS = {"token": normal(1, 1, 3), "positions": normal(1, 5, 3), "scale": normal(2)}

CASES = {
    "linear": (lambda m, x: F.linear(x, m.w), {"w": normal(2, 3)}, normal(7, 3)),
    "linear by name": (
        lambda m, x: F.linear(x, weight=m.w, bias=m.b),
        {"w": normal(2, 3), "b": normal(2)},
        normal(7, 4, 3),
    ),
    "product": (lambda m, x: x @ m.w, {"w": normal(3, 2)}, normal(7, 4, 3)),
    "product with a transposed weight": (lambda m, x: x @ m.w.T, {"w": normal(2, 3)}, normal(7, 4, 3)),
    "biased product of rows": (
        lambda m, x: torch.addmm(m.b, x.flatten(0, 1), m.w).view(*x.shape[:2], 2),
        {"w": normal(3, 2), "b": normal(2)},
        normal(7, 4, 3),
    ),
    "einsum": (lambda m, x: torch.einsum("bti,oi->bto", x, m.w), {"w": normal(2, 3)}, normal(7, 4, 3)),
    "gain and shift": (lambda m, x: x * m.g + m.b, {"g": normal(3), "b": normal(1)}, normal(7, 4, 3)),
    "gain of channels": (lambda m, x: x * m.g.reshape(1, -1, 1), {"g": normal(4)}, normal(7, 4, 3)),
    "gain in another order": (lambda m, x: x * m.g.t().reshape(1, 4, 3), {"g": normal(3, 4)}, normal(7, 4, 3)),
    "gain with a gradient of its own": (lambda m, x: x * Doubled.apply(m.g), {"g": normal(3)}, normal(7, 4, 3)),
    "temperature": (lambda m, x: x / m.t.exp(), {"t": normal()}, normal(7, 4, 3)),
    "in place": (lambda m, x: x.cos().mul_(m.g).add_(m.b), {"g": normal(3), "b": normal(1, 4, 1)}, normal(7, 4, 3)),
    "mask token": (lambda m, x: torch.where(x[..., :1] > 0, m.t, x), {"t": normal(3)}, normal(7, 4, 3)),
    "relative bias": (relative_bias, {"table": normal(9, 2)}, normal(6, 5, 3)),
    "buckets": (buckets, {"bias": nn.Embedding(9, 1), "linear": nn.Linear(3, 3)}, normal(6, 5, 3)),
    "as many pairs as examples": (buckets, {"bias": nn.Embedding(9, 1), "linear": nn.Linear(3, 3)}, normal(7, 5, 3)),
    "attention by one's own weights": (attention(gated), ATTENTION, normal(6, 5, 3)),
    "attention with a mask that all share": (attention(lambda m, _: m.table[0].sigmoid()), ATTENTION, normal(6, 5, 3)),
    "expanded token": (
        class_token(lambda t, n: t.expand(n, -1, -1)),
        {**TOKENS, "linear": nn.Linear(3, 2)},
        normal(6, 4, 3),
    ),
    "repeated token": (
        class_token(lambda t, n: t.repeat(n, 1, 1)),
        {**TOKENS, "linear": nn.Linear(3, 2)},
        normal(6, 4, 3),
    ),
    "token like the batch": (lambda m, x: torch.cat([m.t.expand_as(x), x], 1), {"t": normal(3)}, normal(6, 4, 3)),
    "positions of every example": (
        lambda m, x: x + F.embedding(torch.arange(x.shape[1]).repeat(len(x), 1), m.w),
        {"w": normal(9, 3)},
        normal(5, 4, 3),
    ),
    "rows of every example": (
        lambda m, x: x * m.w[torch.ones(x.shape[:2]).cumsum(1).long()],
        {"w": normal(9, 3)},
        normal(5, 4, 3),
    ),
    "a computed row of every example": (
        lambda m, x: x * F.embedding(torch.arange(x.shape[1]).repeat(len(x), 1), m.w.exp()),
        {"w": normal(9, 3)},
        normal(5, 4, 3),
    ),
    "heads repeated for every example": (
        lambda m, x: torch.bmm(x.repeat_interleave(2, 0), m.w.repeat(len(x), 1, 1)).unflatten(0, (-1, 2)),
        {"w": normal(2, 3, 3)},
        normal(5, 4, 3),
    ),
    "convolution": (
        lambda m, x: F.conv2d(x, m.w, m.b, stride=2, padding=1),
        {"w": normal(3, 2, 3, 3), "b": normal(3)},
        normal(5, 2, 6, 6),
    ),
    "convolution of the same size": (
        lambda m, x: F.conv2d(x, m.w, padding="same"),
        {"w": normal(3, 2, 3, 3)},
        normal(5, 2, 6, 6),
    ),
    "transposed convolution": (
        lambda m, x: F.conv_transpose2d(x, m.w, m.b, stride=2),
        {"w": normal(2, 3, 3, 3), "b": normal(3)},
        normal(5, 2, 4, 4),
    ),
    "standardised weights": (
        lambda m, x: F.conv2d(x, (m.w - m.w.mean()) / m.w.std()),
        {"w": normal(3, 2, 3, 3)},
        normal(5, 2, 6, 6),
    ),
    "layer norm": (lambda m, x: F.layer_norm(x, (3,), m.g, m.b), {"g": normal(3), "b": normal(3)}, normal(5, 4, 3)),
    "rms norm with 1 + weight": (lambda m, x: F.rms_norm(x, (3,), 1 + m.g), {"g": normal(3)}, normal(5, 4, 3)),
    "group norm": (lambda m, x: F.group_norm(x, 2, m.g, m.b), {"g": normal(4), "b": normal(4)}, normal(5, 4, 3)),
    "embedding": (
        lambda m, x: F.embedding((x[..., 0] > 0).long() + 1, m.w, padding_idx=0),
        {"w": normal(4, 3)},
        normal(5, 4, 3),
    ),
    "normalised weight": (lambda m, x: F.linear(x, m.w / m.w.norm()), {"w": normal(2, 3)}, normal(7, 3)),
    "penalty": (lambda m, x: F.linear(x, m.w) + m.w.norm(), {"w": normal(2, 3)}, normal(7, 3)),
    "twice, as a layer and transposed": (
        lambda m, x: F.linear(m.layer(x).tanh(), m.layer.weight.T) + m.layer.bias.sum(),
        {"layer": nn.Linear(3, 2)},
        normal(7, 3),
    ),
    "gate": (
        lambda m, x: torch.sigmoid(m.a) * x + (1 - torch.sigmoid(m.a)) * m.layer(x),
        {"a": normal(), "layer": nn.Linear(3, 3)},
        normal(5, 3),
    ),
    "layer of a parameter": (
        lambda m, x: torch.tanh(m.layer(m.q) @ x.mT),
        {"q": normal(2, 3), "layer": nn.Linear(3, 3)},
        normal(5, 4, 3),
    ),
    "queries of attention": (
        lambda m, x: m.mix(m.q.expand(len(x), -1, -1), x, x)[0],
        {"q": normal(1, 2, 4), "mix": nn.MultiheadAttention(4, 2, batch_first=True)},
        normal(5, 4, 4),
    ),
    "lstm cell": (cell, {"cell": nn.LSTMCell(3, 4)}, normal(5, 4, 3)),
    "gru cell": (cell, {"cell": nn.GRUCell(3, 4)}, normal(5, 4, 3)),
    "rnn cell": (cell, {"cell": nn.RNNCell(3, 4, bias=False)}, normal(5, 4, 3)),
    "several rows per example": (
        lambda m, x: (x.flatten(0, 1) * m.g).unflatten(0, x.shape[:2]),
        {"g": normal(3)},
        normal(5, 4, 3),
    ),
    "several rows, mapped": (
        lambda m, x: torch.einsum("ni,oi->no", x.flatten(0, 1), m.w).unflatten(0, x.shape[:2]),
        {"w": normal(2, 3)},
        normal(5, 4, 3),
    ),
    "weight norm": (
        lambda m, x: m.layer(x),
        {"layer": nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))},
        normal(5, 3),
    ),
    "weight norm of channels": (
        lambda m, x: m.layer(x),
        {"layer": nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3, groups=4))},
        normal(5, 4, 6),
    ),
    "orthogonal": (
        lambda m, x: m.layer(x),
        {"layer": nn.utils.parametrizations.orthogonal(nn.Linear(3, 3), orthogonal_map="cayley")},
        normal(5, 3),
    ),
}


@pytest.fixture
def make():
    def model(name: str) -> tuple[nn.Module, torch.Tensor]:
        torch.manual_seed(0)
        function, parts, inputs = CASES[name]
        return Around(lambda m, x: torch.tanh(function(m, x)), **parts).double(), inputs

    return model


@pytest.mark.filterwarnings("ignore:There is a performance drop")
class TestExact:
    @pytest.mark.parametrize("name", CASES)
    def test_against_a_loop(self, name, make):
        model, inputs = make(name)
        assert_engine_exact(model, inputs)
        for count in (1, 2):
            assert_engine_exact(model, inputs[:count])

    @pytest.mark.parametrize("name", ["linear", "relative bias", "expanded token", "normalised weight", "lstm cell"])
    def test_against_the_reference_engine(self, name, make):
        model, inputs = make(name)
        assert_close(by_engine(ENGINE, model, inputs), by_engine(ReferenceEngine(), model, inputs), 1e-10)

    @pytest.mark.parametrize("name", ["linear", "gain and shift", "relative bias", "expanded token", "einsum"])
    def test_single_precision_against_a_loop_in_double(self, name, make):
        model, inputs = make(name)
        found = by_engine(ENGINE, model.float(), inputs.float())
        expected = by_loop(model.double(), inputs)
        assert_close(found, expected, 5e-5)
        assert (found.norms >= expected.norms * (1 - 1e-6)).all()

    @pytest.mark.parametrize(
        "name", ["linear", "layer norm", "convolution", "product", "embedding", "biased product of rows"]
    )
    def test_mapping_agrees_with_the_rules(self, name, make, monkeypatch):
        model, inputs = make(name)
        by_rule = by_engine(ENGINE, model, inputs)
        monkeypatch.setattr(watch, "RULED", {})
        monkeypatch.setattr(watch, "MAPS", {})
        assert_close(by_engine(ENGINE, model, inputs), by_rule, 1e-10)

    def test_in_pieces(self, make):
        model, _ = make("expanded token")
        inputs = normal(40, 4, 3)
        assert_close(by_engine(BookkeepingEngine(physical_batch_size=8), model, inputs), by_loop(model, inputs))

    @pytest.mark.parametrize(
        ("case", "names"),
        [
            ("expanded token", ["token"]),
            ("expanded token", ["positions"]),
            ("expanded token", ["scale"]),
            ("expanded token", ["linear.weight"]),
            ("attention by one's own weights", ["q.weight", "k.bias"]),
            ("attention by one's own weights", ["q.bias", "k.bias", "v.bias", "out.weight"]),
            ("attention by one's own weights", ["out.weight", "out.bias", "table"]),
        ],
    )
    def test_frozen_parts(self, case, names, make):
        model, inputs = make(case)
        for name in names:
            model.get_parameter(name).requires_grad_(False)
        assert_engine_exact(model, inputs)

    def test_one_by_one_where_mapping_fails(self, make, monkeypatch):
        def fails(*_):
            raise RuntimeError("no batching rule")

        model, inputs = make("einsum")
        monkeypatch.setattr(mapped, "vmap", lambda _: fails)
        assert_engine_exact(model, inputs)


class TestCheckpoints:
    """What is computed again in the backward pass is computed in the way of the forward pass."""

    @pytest.mark.parametrize(
        "inner",
        [
            lambda: Around(lambda m, x: x * m.g + m.layer(x), g=normal(4), layer=nn.Linear(4, 4)),
            lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True),
            lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh()),
        ],
        ids=["functions", "attention", "layers"],
    )
    def test_exact(self, inner):
        torch.manual_seed(0)
        model = Around(
            lambda m, x: checkpoint(m.inner, m.first(x), use_reentrant=False), first=nn.Linear(3, 4), inner=inner()
        )
        assert_engine_exact(model.double(), normal(5, 4, 3))

    def test_reentrant_ones_have_an_error_that_says_what_to_do(self):
        model = Around(
            lambda m, x: checkpoint(m.inner, m.first(x), use_reentrant=True),
            first=nn.Linear(3, 4),
            inner=nn.Linear(4, 4),
        )
        with pytest.raises(InvalidArgumentError, match="use_reentrant=False"):
            by_engine(ENGINE, model.double(), normal(5, 4, 3))


class TestDraws:
    def test_dropout_behind_a_parameter_of_its_own(self):
        """Stochastic depth and dropout are functions of the batch alone: they run once, with their draws."""
        model = Around(lambda m, x: F.dropout(x * m.g, 0.5), g=normal(3))
        inputs = normal(16, 4, 3)
        by_engine(ENGINE, model, inputs)
        torch.manual_seed(5)
        found = by_engine(ENGINE, model, inputs, coefficients=np.ones(16))
        torch.manual_seed(5)
        (expected,) = torch.autograd.grad(squared_output(model, inputs).sum(), [model.g])
        np.testing.assert_allclose(found.total, expected, rtol=1e-9)


class TestRefused:
    """Negative controls: what would give wrong gradients is refused."""

    @pytest.mark.parametrize(
        "function",
        [
            lambda m, x: (x - x.mean(0)) * m.g,
            lambda m, x: x.flip(0) * m.g,
            lambda m, x: (x * m.g).softmax(0),
            lambda m, x: torch.einsum("bti,bto,oi->bti", x, x.flip(0), m.w),
        ],
        ids=["centred", "flipped", "softmax", "einsum"],
    )
    def test_mixed_examples(self, function):
        model = Around(function, g=normal(3), w=normal(3, 3))
        model.w.requires_grad_(False)
        with pytest.raises(InvalidArgumentError, match="mix"):
            by_engine(ENGINE, model, normal(5, 4, 3))

    def test_mixed_inside_the_function(self):
        model = Around(lambda m, x: torch.einsum("bi,ci,i->bc", x, x, m.g)[:, :1], g=normal(3))
        with pytest.raises(InvalidArgumentError, match="mix"):
            by_engine(ENGINE, model, normal(5, 3))

    def test_attention_over_the_examples(self):
        model = Around(lambda m, x: attention(lambda *_: None)(m, x.transpose(0, 1)).transpose(0, 1), **ATTENTION)
        with pytest.raises(InvalidArgumentError, match="mix"):
            by_engine(ENGINE, model.double(), normal(5, 5, 3))

    def test_batch_statistics_inside_the_function(self):
        model = Around(lambda m, x: F.batch_norm(x, None, None, m.g, training=True), g=normal(3))
        with pytest.raises(InvalidArgumentError):
            by_engine(ENGINE, model, normal(5, 3))

    def test_examples_in_another_dimension(self):
        model = Around(lambda m, x: torch.bmm(x.transpose(0, 1), m.w).transpose(0, 1), w=normal(4, 3, 3))
        for count in (4, 5, 8):  # examples are in the second dimension there, which values tell
            assert_engine_exact(model, normal(count, 4, 3))
        third = Around(lambda m, x: torch.bmm(x.movedim(0, 2), m.w).movedim(2, 0), w=normal(4, 5, 5))
        with pytest.raises(InvalidArgumentError):
            by_engine(ENGINE, third, normal(5, 4, 3))

    def test_a_row_of_the_parameter_for_each_example(self):
        """An embedding of examples by their place in the batch."""
        model = Around(lambda m, x: x + m.w[: len(x)], w=normal(10, 3))
        with pytest.raises(InvalidArgumentError):
            by_engine(ENGINE, model, normal(5, 3))

    def test_gradients_that_are_pulled_back_wrongly(self, make, monkeypatch):
        plain = carried.through_graph
        monkeypatch.setattr(
            carried, "through_graph", lambda *given: {key: 0.9 * part for key, part in plain(*given).items()}
        )
        model, inputs = make("normalised weight")
        with pytest.raises(InvalidArgumentError, match=r"not what autograd gives|clipped too little"):
            by_engine(ENGINE, model, inputs)


class TestSharedWeights:
    class Language(nn.Module):
        """Words, a layer, and the same words as weights of the output."""

        def __init__(self, words: int, width: int, bias: bool, twice: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.inner, self.twice = nn.Embedding(words, width), nn.Linear(width, width), twice
            self.outputs = nn.Linear(width, words, bias=bias)
            self.outputs.weight = self.words.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            hidden = torch.tanh(self.inner(self.words(ids)))
            return self.outputs(hidden + self.words(ids.flip(1)) if self.twice else hidden)

    def words(self, most: int, *shape: int) -> torch.Tensor:
        ids = torch.randint(0, most, shape, generator=torch.Generator().manual_seed(0))
        ids[0] = ids[0, 0]
        return ids

    @pytest.mark.parametrize(("words", "width", "places"), [(11, 3, 4), (400, 30, 4), (400, 30, 1)])
    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize("twice", [False, True])
    def test_language_model(self, words, width, places, bias, twice):
        model, ids = self.Language(words, width, bias, twice).double(), self.words(words, 6, places)
        assert_engine_exact(model, ids)
        assert_close(by_engine(ENGINE, model, ids), by_engine(ReferenceEngine(), model, ids), 1e-10)

    def test_no_table_is_held_for_any_example(self, monkeypatch):
        """Neither norms nor sums materialise gradients as large as the vocabulary."""
        monkeypatch.setattr(Lookups, "materialise", None)
        for twice in (False, True):
            by_engine(ENGINE, self.Language(400, 30, True, twice), self.words(400, 6, 4))

    def test_control(self, monkeypatch):
        """Where they would be, the test above sees it."""
        monkeypatch.setattr(Lookups, "materialise", None)
        monkeypatch.setattr(Summed, "_tied", lambda _: False)
        with pytest.raises(TypeError):
            by_engine(ENGINE, self.Language(400, 30, True, False), self.words(400, 6, 4))

    def test_single_precision_is_rounded_up(self):
        model, ids = self.Language(400, 30, False, False), self.words(400, 6, 4)
        found, expected = by_engine(ENGINE, model, ids), by_loop(model.double(), ids)
        assert_close(found, expected, 1e-4)
        assert (found.norms >= expected.norms * (1 - 1e-6)).all()

    @pytest.mark.parametrize(
        ("one", "other", "shape"),
        [
            (lambda: nn.Linear(3, 3), lambda: nn.Linear(3, 3, bias=False), (3,)),
            (lambda: nn.Linear(3, 3), lambda: nn.Linear(3, 3), (4, 3)),
            (lambda: nn.Conv1d(3, 3, 1), lambda: nn.Conv1d(3, 3, 1), (3, 4)),
            (lambda: nn.LayerNorm(3), lambda: nn.LayerNorm(3), (2, 3)),
        ],
    )
    def test_two_layers(self, one, other, shape):
        torch.manual_seed(0)
        model = nn.Sequential(one(), nn.Tanh(), other()).double()
        model[2].weight = model[0].weight
        assert_engine_exact(model, normal(5, *shape))

    def test_cross_terms_count(self):
        """Without them the norm of a gradient would be wrong: the two uses are far from orthogonal."""
        model, ids = self.Language(400, 30, False, False).double(), self.words(400, 6, 4)
        found = by_engine(ENGINE, model, ids).norms
        apart = self.Language(400, 30, False, False).double()
        apart.outputs.weight = nn.Parameter(apart.words.weight.detach().clone())
        assert (np.abs(by_engine(ENGINE, apart, ids).norms / found - 1) > 1e-6).any()
