"""Every rule, every option, at batch sizes 0, 1, 2 and 7, against autograd on single examples in float64."""

from __future__ import annotations

import importlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, LayerCall, ReferenceEngine, register_rule
from inosgd.gradients.rules import Dense, Lookups, forms, normalization, rule, rule_for, sums, watch
from inosgd.gradients.rules.convolution import Convolved, Geometry
from inosgd.gradients.rules.embedding import embedding_rule
from inosgd.gradients.rules.forms import CHUNK_ELEMENTS, SharedLookups, Summed, affine
from tests.architectures.compared import InDouble
from tests.gradients.gradient_oracle import assert_close, assert_engine_exact, by_engine, squared_output
from tests.properties import tries

pytestmark = pytest.mark.usefixtures("sizes_unprobed")

COUNTS = [0, 1, 2, 7]
counts = st.sampled_from(COUNTS)
quick = tries(6)
flags = st.booleans()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def build(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in float64 with random parameters, also where the default is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / 2)
    return module


class TestLinear:
    @quick
    @given(counts, st.lists(st.integers(1, 4), max_size=3), st.integers(1, 5), st.integers(1, 5), flags)
    def test_any_sequence_shape(self, count, places, inputs, outputs, bias):
        model = build(nn.Sequential(nn.Linear(inputs, outputs, bias=bias), nn.Tanh()))
        assert_engine_exact(model, normal(count, *places, inputs))

    @pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.weight"])
    def test_frozen_parameters_are_left_out(self, frozen):
        model = build(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
        model.get_parameter(frozen).requires_grad_(False)
        assert_engine_exact(model, normal(5, 3))
        assert_engine_exact(model, normal(5, 6, 3))

    def test_gram_and_materialised_sequences_agree(self):
        outputs, inputs = normal(3, 4, 9), normal(3, 4, 11)
        compact, dense = affine(outputs, [inputs], 1), Dense(tuple(affine(outputs, [inputs], 1).materialise()))
        assert not isinstance(compact, Dense)
        assert torch.allclose(compact.bounds().norms, dense.bounds().norms, rtol=1e-12)


class TestConvolution:
    @tries(10)
    @given(
        count=counts,
        groups=st.sampled_from([1, 2]),
        channels=st.integers(1, 3),
        filters=st.integers(1, 3),
        kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
        size=st.tuples(st.integers(5, 7), st.integers(5, 7)),
        bias=flags,
    )
    def test_two_dimensions(self, count, groups, channels, filters, kernel, size, **options):
        layer = nn.Conv2d(groups * channels, groups * filters, kernel, groups=groups, **options)
        assert_engine_exact(build(nn.Sequential(layer, nn.Tanh())), normal(count, groups * channels, *size))

    @quick
    @given(
        count=counts,
        groups=st.sampled_from([1, 2]),
        kernel=st.integers(1, 3),
        stride=st.integers(1, 3),
        padding=st.integers(0, 2),
        dilation=st.integers(1, 2),
        bias=flags,
    )
    def test_one_dimension(self, count, groups, kernel, **options):
        layer = nn.Conv1d(2 * groups, groups, kernel, groups=groups, **options)
        assert_engine_exact(build(nn.Sequential(layer, nn.Tanh())), normal(count, 2 * groups, 9))

    @pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")
    @pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
    @pytest.mark.parametrize("padding", [1, "same", "valid"])
    def test_padding_modes(self, mode, padding):
        model = build(nn.Conv2d(2, 3, (3, 2), padding=padding, padding_mode=mode))
        line = build(nn.Conv1d(2, 3, 3, padding=padding, padding_mode=mode))
        for count in COUNTS:
            assert_engine_exact(model, normal(count, 2, 5, 6))
            assert_engine_exact(line, normal(count, 2, 6))

    @pytest.mark.parametrize("gram", [True, False])
    def test_strides_longer_than_images(self, gram, monkeypatch):
        from inosgd.gradients.rules import convolution

        monkeypatch.setattr(convolution, "_prefers_gram", lambda *_: gram)
        model = build(nn.Sequential(nn.Conv2d(2, 3, 2, stride=(3, 4)), nn.Tanh()))
        for count in COUNTS:
            assert_engine_exact(model, normal(count, 2, 2, 3))

    @pytest.mark.parametrize("stride", [1, 2])
    @pytest.mark.parametrize("groups", [1, 2])
    def test_all_ways_on_one_shape(self, stride, groups, monkeypatch):
        from inosgd.gradients.rules import convolution

        model = build(nn.Sequential(nn.Conv2d(4, 6, 3, stride=stride, padding=1, groups=groups, dilation=2), nn.Tanh()))
        for gram, held in ((True, 0), (False, 0), (False, 1000)):
            monkeypatch.setattr(convolution, "_prefers_gram", lambda *_, gram=gram: gram)
            monkeypatch.setattr(convolution, "HELD_PIXELS", held)
            for elements in (convolution.CHUNK_ELEMENTS, 1):
                monkeypatch.setattr(convolution, "CHUNK_ELEMENTS", elements)
                assert_engine_exact(model, normal(7, 4, 8, 7))

    @pytest.mark.parametrize("frozen", ["weight", "bias"])
    def test_frozen(self, frozen):
        model = build(nn.Conv2d(2, 3, 2))
        model.get_parameter(frozen).requires_grad_(False)
        assert_engine_exact(model, normal(3, 2, 4, 4))


class TestEmbedding:
    @quick
    @given(counts, st.lists(st.integers(1, 5), max_size=2), st.sampled_from([None, 0, 3]))
    def test_repeated_and_padding_words(self, count, places, padding):
        words = torch.randint(0, 4, (count, *places), generator=torch.Generator().manual_seed(3))
        model = build(nn.Sequential(nn.Embedding(4, 3, padding_idx=padding), nn.Linear(3, 2)))
        assert_engine_exact(model, words)

    @pytest.mark.parametrize("tables", [True, False])
    @pytest.mark.parametrize("count", COUNTS)
    def test_both_ways_on_one_shape(self, tables, count, monkeypatch):
        words = torch.randint(0, 4, (count, 6), generator=torch.Generator().manual_seed(3))
        model = build(nn.Sequential(nn.Embedding(4, 3), nn.Tanh()))
        monkeypatch.setattr(Lookups, "_prefers_tables", lambda _: tables)
        for elements in (forms.CHUNK_ELEMENTS, 24):
            monkeypatch.setattr(forms, "CHUNK_ELEMENTS", elements)
            assert_engine_exact(model, words)

    @pytest.mark.parametrize("rows", [[3, 0, 2], [3, 0, 3], [1]])
    @pytest.mark.parametrize("padding", [None, 0])
    @pytest.mark.parametrize("count", COUNTS)
    def test_rows_that_all_examples_look_up(self, rows, padding, count):
        model = build(Positions(nn.Embedding(5, 2, padding_idx=padding), rows))
        assert_engine_exact(model, normal(count, len(rows), 2))
        assert_engine_exact(build(Twice(model)), normal(count, len(rows), 2))

    def test_rows_by_small_integers(self):
        model = build(Positions(nn.Embedding(5, 2), [3, 0, 2]))
        model.rows = model.rows.int()
        assert_engine_exact(model, normal(4, 3, 2))

    @pytest.mark.parametrize(
        ("words", "form"),
        [
            (torch.tensor([[0, 2, 1]]).expand(4, 3), SharedLookups),
            (torch.tensor([[0, 2, 0]]).expand(4, 3), Lookups),
            (torch.tensor([[0, 2, 1]]).repeat(4, 1), Lookups),
        ],
    )
    def test_what_is_shared(self, words, form):
        table = nn.Embedding(3, 2)
        (found,) = embedding_rule(LayerCall(table, (words,), {}, None, torch.ones(4, 3, 2))).values()
        assert isinstance(found, form)


class Positions(nn.Module):
    """Looks up the same rows for all examples."""

    def __init__(self, table: nn.Embedding, rows: list[int]) -> None:
        super().__init__()
        self.table, self.rows = table, torch.tensor(rows)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.table(self.rows.expand(inputs.shape[:2])) * inputs


class TestNormalization:
    @quick
    @given(counts, st.lists(st.integers(1, 4), max_size=2), st.sampled_from([(4,), (2, 4)]), flags)
    def test_layer_norm(self, count, places, shape, bias):
        assert_engine_exact(build(nn.LayerNorm(shape, bias=bias)), normal(count, *places, *shape))

    @quick
    @given(counts, st.lists(st.integers(1, 4), max_size=2))
    def test_rms_norm(self, count, places):
        assert_engine_exact(build(nn.RMSNorm(4)), normal(count, *places, 4))

    @quick
    @given(counts, st.sampled_from([1, 2, 4]), st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def test_group_norm(self, count, groups, pixels):
        assert_engine_exact(build(nn.GroupNorm(groups, 4)), normal(count, 4, 2, *pixels))

    @pytest.mark.parametrize("count", COUNTS)
    @pytest.mark.parametrize(
        ("layer", "pixels"), [(nn.InstanceNorm1d, (5,)), (nn.InstanceNorm2d, (3, 2)), (nn.InstanceNorm3d, (3, 2, 2))]
    )
    def test_instance_norm(self, layer, pixels, count):
        assert_engine_exact(build(layer(3, affine=True)), normal(count, 3, *pixels))

    @pytest.mark.parametrize("layer", [nn.GroupNorm(2, 4), nn.LayerNorm(4)])
    @pytest.mark.parametrize("frozen", ["weight", "bias"])
    def test_frozen(self, layer, frozen):
        model = build(layer)
        model.requires_grad_(True).get_parameter(frozen).requires_grad_(False)
        assert_engine_exact(model, normal(3, 4) if isinstance(layer, nn.LayerNorm) else normal(3, 4, 5))

    @pytest.mark.parametrize("layer", [nn.LayerNorm(4), nn.GroupNorm(2, 4)])
    @pytest.mark.parametrize("count", COUNTS)
    def test_without_what_autograd_has_kept(self, layer, count, monkeypatch):
        model = build(nn.Sequential(layer, nn.Tanh()))
        assert normalization._statistics(layer(normal(2, 4))) is not None
        assert normalization._statistics(layer(normal(2, 4)) + 1) is None
        monkeypatch.setattr(rule, "_notes", {})
        assert_engine_exact(model, normal(count, 4))

    def test_a_checkpoint_is_run_twice_and_no_more(self, request):
        class Checkpointed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers, self.runs = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4)), 0

            def body(self, inputs: torch.Tensor) -> torch.Tensor:
                self.runs += 1
                return self.layers(inputs).sin()

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return checkpoint(self.body, inputs, use_reentrant=False)

        model, inputs = build(Checkpointed()), normal(5, 4).requires_grad_()
        assert_engine_exact(model, inputs)
        request.getfixturevalue("values_unchecked")
        model.runs = 0
        by_engine(BookkeepingEngine(), model, inputs)
        assert model.runs == 2


class TestNormsOfOtherPackages:
    @staticmethod
    def normalised(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, m.normalized_shape, m.weight, m.bias, m.eps)

    def named(self, name: str, forward) -> nn.Module:
        """A LayerNorm with this full name and ``forward``."""
        place, _, own = name.rpartition(".")
        found = type(own, (nn.LayerNorm,), {"forward": forward, "__module__": place, "__qualname__": own})(4)
        found.variance_epsilon = found.eps
        return found

    @pytest.mark.parametrize("family", ["Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen3", "Granite"])
    def test_of_language_models(self, family):
        place = importlib.import_module(f"transformers.models.{family.lower()}.modeling_{family.lower()}")
        norm = getattr(place, f"{family}RMSNorm")(4, eps=1e-2)
        assert rule_for(norm) is normalization.language_norm_rule
        with InDouble():
            assert_engine_exact(build(nn.Sequential(norm, nn.Tanh(), nn.Linear(4, 3))), normal(5, 6, 4))
            assert_engine_exact(build(nn.Sequential(norm, nn.Linear(4, 3))), normal(5, 2, 3, 4))

    def test_of_timm(self):
        norm = self.named("timm.layers.norm.LayerNorm", self.normalised)
        assert rule_for(norm) is normalization.layer_norm_rule
        assert_engine_exact(build(nn.Sequential(norm, nn.Tanh(), nn.Linear(4, 3))), normal(5, 6, 4))

    @pytest.mark.parametrize(
        "name", ["timm.layers.norm.LayerNorm", "transformers.models.llama.modeling_llama.LlamaRMSNorm"]
    )
    def test_what_computes_something_else_under_the_name_is_refused(self, name):
        def shifted(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return (x + 1) * m.weight + (0 if "timm" not in name else m.bias)

        norm = build(self.named(name, shifted))
        norm.bias.requires_grad_("timm" in name)
        with pytest.raises(InvalidArgumentError, match="not what autograd gives"):
            by_engine(BookkeepingEngine(), norm, normal(5, 6, 4))


class TestRecurrent:
    @tries(8)
    @given(
        kind=st.sampled_from([nn.RNN, nn.GRU, nn.LSTM]),
        count=counts,
        places=st.integers(1, 4),
        num_layers=st.integers(1, 2),
        bidirectional=flags,
        batch_first=flags,
        bias=flags,
    )
    def test_every_option(self, kind, count, places, batch_first, **options):
        model = build(nn.Sequential(Recurrent(kind(3, 2, batch_first=batch_first, **options))))
        assert_engine_exact(model, normal(count, places, 3))

    @pytest.mark.parametrize("count", COUNTS)
    def test_relu_cells_and_projected_states(self, count):
        assert_engine_exact(build(Recurrent(nn.RNN(3, 2, nonlinearity="relu", batch_first=True))), normal(count, 5, 3))
        projected = nn.LSTM(3, 4, proj_size=2, num_layers=2, bidirectional=True, batch_first=True)
        assert_engine_exact(build(Recurrent(projected)), normal(count, 3, 3))

    @pytest.mark.parametrize("frozen", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
    @pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
    def test_frozen(self, kind, frozen):
        layer = kind(3, 2, batch_first=True)
        getattr(layer, frozen).requires_grad_(False)
        assert_engine_exact(build(Recurrent(layer)), normal(3, 4, 3))

    @pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
    @pytest.mark.parametrize("trained", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
    def test_all_but_one_frozen(self, kind, trained):
        layer = kind(3, 2, batch_first=True).requires_grad_(False)
        getattr(layer, trained).requires_grad_(True)
        assert_engine_exact(build(Recurrent(layer)), normal(3, 4, 3))

    def test_without_gradients(self):
        """A layer that the model itself keeps out of training."""

        class Fixed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lstm, self.mix = nn.LSTM(3, 2, batch_first=True), nn.MultiheadAttention(2, 1, batch_first=True)
                self.still, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                with torch.no_grad():
                    hidden = self.still(self.lstm(inputs)[0])
                    hidden = self.mix(hidden, hidden, hidden)[0]
                return self.head(hidden)

        assert_engine_exact(build(Fixed()), normal(3, 4, 3))

    @pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
    @pytest.mark.parametrize("count", COUNTS)
    def test_last_state_and_given_first_state(self, kind, count):
        assert_engine_exact(build(LastState(kind(3, 2, num_layers=2, batch_first=True))), normal(count, 5, 3))

    @pytest.mark.parametrize("count", COUNTS)
    def test_the_last_memory_alone(self, count):
        class Memory(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.LSTM(3, 2, batch_first=True)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.layer(inputs)[1][1].squeeze(0)

        assert_engine_exact(build(Memory()), normal(count, 4, 3))

    @pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
    def test_states_that_are_changed_in_place_are_refused(self, kind):
        class Changed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.change = kind(3, 2, batch_first=True), False

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                output = self.layer(inputs)[0]
                return output.mul_(2) if self.change else output * 2

        model = build(Changed())
        by_engine(BookkeepingEngine(), model, normal(3, 4, 3))  # the check before the first batch sees nothing
        model.change = True
        with pytest.raises((InvalidArgumentError, RuntimeError), match=r"in ?place"):
            by_engine(BookkeepingEngine(), model, normal(3, 4, 3))

    def test_a_gradient_that_is_differentiated_again_is_refused(self):
        """Also where the check before the first batch has seen nothing of it."""
        model, again = build(Recurrent(nn.LSTM(3, 2, batch_first=True))), []

        def losses(model: nn.Module, examples: torch.Tensor) -> torch.Tensor:
            inputs = examples.clone().requires_grad_()
            values = model(inputs).square().sum((1, 2))
            if again:
                (slope,) = torch.autograd.grad(values.sum(), inputs, create_graph=True)
                values = values + slope.square().sum((1, 2))
            return values

        by_engine(BookkeepingEngine(), model, normal(3, 4, 3), losses)
        again.append(True)
        with pytest.raises(InvalidArgumentError, match="differentiated again"):
            by_engine(BookkeepingEngine(), model, normal(3, 4, 3), losses)


class TestPackedSequences:
    """Sequences of different lengths, packed, give what each of them gives alone and without padding."""

    @tries(10)
    @given(
        kind=st.sampled_from([nn.RNN, nn.GRU, nn.LSTM]),
        lengths=st.lists(st.integers(1, 4), min_size=1, max_size=7),
        read=st.sampled_from(["outputs", "last states"]),
        num_layers=st.integers(1, 2),
        bidirectional=flags,
        batch_first=flags,
        bias=flags,
    )
    def test_every_option(self, kind, lengths, read, **options):
        model = build(Packed(kind(3, 2, **options), read))
        assert_engine_exact(model, (normal(len(lengths), 4, 3), torch.tensor(lengths)))

    @pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
    def test_given_first_state_sorted_input_and_projection(self, kind):
        lengths = torch.tensor([4, 4, 2, 1])
        for options in ({}, {"proj_size": 2, "bidirectional": True}) if kind is nn.LSTM else ({},):
            layer = kind(3, 4, batch_first=True, **options)
            model = build(Packed(layer, "outputs", enforce_sorted=True, start="proj_size" not in options))
            assert_engine_exact(model, (normal(4, 4, 3), lengths))

    def test_padding_has_no_part_in_anything(self):
        model, inputs, lengths = build(Packed(nn.LSTM(3, 2), "outputs")), normal(3, 4, 3), torch.tensor([2, 4, 1])
        first = by_engine(BookkeepingEngine(), model, (inputs, lengths))
        inputs[0, 2:], inputs[2, 1:] = 1e3, -1e3
        assert_close(by_engine(BookkeepingEngine(), model, (inputs, lengths)), first, tolerance=0)

    def test_reference_engine(self):
        model = build(Packed(nn.GRU(3, 2, bidirectional=True), "last states"))
        examples = (normal(4, 4, 3), torch.tensor([3, 1, 4, 2]))
        assert_close(by_engine(BookkeepingEngine(), model, examples), by_engine(ReferenceEngine(), model, examples))

    def test_layer_on_packed_data_is_refused(self):
        class OnPacked(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(3, 2)

            def forward(self, inputs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
                packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
                changed = packed._replace(data=self.layer(packed.data))
                return pad_packed_sequence(changed, batch_first=True)[0]

        with pytest.raises(InvalidArgumentError, match=r"'layer': an output of shape \(5, 2\) for 3 examples"):
            by_engine(BookkeepingEngine(), build(OnPacked()), (normal(3, 2, 3), torch.tensor([2, 1, 2])))


class Packed(nn.Module):
    """A recurrent layer on packed sequences; its outputs beyond the end of a sequence are zeros."""

    def __init__(self, layer: nn.RNNBase, read: str, *, enforce_sorted: bool = False, start: bool = False) -> None:
        super().__init__()
        self.layer, self.read, self.enforce_sorted = layer, read, enforce_sorted
        self.start = nn.Linear(3, layer.hidden_size) if start else None

    def forward(self, inputs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=self.enforce_sorted)
        states = []
        if self.start is not None:
            first = self.start(inputs[:, 0]).unsqueeze(0)
            states = [(first, first.sin()) if isinstance(self.layer, nn.LSTM) else first]
        output, last = self.layer(packed, *states)
        if self.read == "outputs":
            return pad_packed_sequence(output, batch_first=True, total_length=inputs.shape[1])[0]
        return (torch.cat(last, 2) if isinstance(last, tuple) else last).transpose(0, 1)


class Recurrent(nn.Module):
    """A recurrent layer with its outputs in batch order."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.layer.batch_first:
            return self.layer(inputs)[0]
        return self.layer(inputs.transpose(0, 1))[0].transpose(0, 1)


class LastState(nn.Module):
    """Reads the last states only, and starts from a state computed from the input."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.start = nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first = self.start(inputs[:, :2]).transpose(0, 1).contiguous()
        given = (first, first.sin()) if isinstance(self.layer, nn.LSTM) else first
        state = self.layer(inputs, given)[1]
        last = torch.cat(state) if isinstance(self.layer, nn.LSTM) else state
        return last.transpose(0, 1)


class TestAttention:
    @tries(8)
    @given(
        count=counts,
        places=st.integers(1, 4),
        batch_first=flags,
        bias=flags,
        add_bias_kv=flags,
        add_zero_attn=flags,
        weights=flags,
        mask=st.sampled_from([None, "places", "padding", "both"]),
    )
    def test_self_attention(self, count, places, weights, mask, **options):
        model = build(Attention(nn.MultiheadAttention(4, 2, **options), weights=weights, mask=mask))
        assert_engine_exact(model, normal(count, places, 4))

    @pytest.mark.parametrize("count", COUNTS)
    def test_one_place_after_the_other(self, count):
        """Without ``batch_first``, and in memory like that: so is the output, as the library gives it."""

        class ByPlace(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.MultiheadAttention(4, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                given = inputs.transpose(0, 1).contiguous()
                output = self.layer(given, given, given, need_weights=False)[0]
                return output.view(given.shape).transpose(0, 1)

        assert_engine_exact(build(ByPlace()), normal(count, 3, 4))

    @pytest.mark.parametrize("widths", [{}, {"kdim": 3, "vdim": 5}])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("count", COUNTS)
    def test_other_keys_and_values(self, widths, bias, count):
        model = build(CrossAttention(nn.MultiheadAttention(4, 2, batch_first=True, bias=bias, **widths)))
        keys, values = normal(count, 5, widths.get("kdim", 4)), normal(count, 5, widths.get("vdim", 4)).sin()
        assert_engine_exact(model, (normal(count, 2, 4), keys, values))

    @pytest.mark.parametrize("frozen", ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"])
    def test_frozen(self, frozen):
        model = build(Attention(nn.MultiheadAttention(4, 2, batch_first=True)))
        model.layer.get_parameter(frozen).requires_grad_(False)
        assert_engine_exact(model, normal(3, 2, 4))

    @pytest.mark.parametrize("letter", "qkv")
    def test_frozen_projections(self, letter):
        layer = nn.MultiheadAttention(4, 2, batch_first=True, kdim=3, vdim=5, bias=False)
        getattr(layer, f"{letter}_proj_weight").requires_grad_(False)
        assert_engine_exact(build(CrossAttention(layer)), (normal(3, 2, 4), normal(3, 5, 3), normal(3, 5, 5).sin()))

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
    @pytest.mark.parametrize("count", COUNTS)
    def test_transformer_encoder(self, training, options, count):
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, **options)
        model = build(nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2))).train(training)
        assert_engine_exact(model, normal(count, 3, 4))

    @pytest.mark.parametrize("count", COUNTS)
    def test_transformer_decoder(self, count):
        model = build(nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=True))
        assert_engine_exact(model, (normal(count, 2, 4), normal(count, 5, 4).cos()))

    def test_frozen_encoder_with_a_trained_head(self):
        layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True).requires_grad_(False)
        model = build(nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2))).eval()
        assert_engine_exact(model, normal(5, 3, 4))


class Attention(nn.Module):
    def __init__(self, layer: nn.MultiheadAttention, *, weights: bool = False, mask: str | None = None) -> None:
        super().__init__()
        self.layer, self.weights, self.mask = layer, weights, mask

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        places = inputs.shape[1]
        options = {}
        if self.mask in ("places", "both"):
            options["attn_mask"] = torch.ones(places, places, dtype=torch.bool).triu(1)
        if self.mask in ("padding", "both"):
            options["key_padding_mask"] = (torch.arange(places) > 0) & (inputs[:, :, 0] > 0.5)
        given = inputs if self.layer.batch_first else inputs.transpose(0, 1)
        output, weights = self.layer(given, given, given, need_weights=self.weights, **options)
        output = output if self.layer.batch_first else output.transpose(0, 1)
        return output.flatten(1) if weights is None else torch.cat([output.flatten(1), weights.flatten(1)], 1)


class CrossAttention(nn.Module):
    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return self.layer(queries, keys, values)[0]


class Scale(nn.Module):
    """A layer that has no rule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.power = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor, *, shift: torch.Tensor | None = None) -> torch.Tensor:
        result = self.scale * torch.sinh(self.power * inputs)
        return result if shift is None else result + shift


class WithOwnParameter(nn.Module):
    """Parameters of its own around a child that has a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.child = nn.Parameter(torch.ones(2)), nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.child(inputs)) * self.gain


class TestFallback:
    @pytest.mark.parametrize("count", COUNTS)
    def test_unknown_layer(self, count):
        model = build(nn.Sequential(nn.Linear(3, 4), Scale(4), nn.Linear(4, 2)))
        assert rule_for(model[1]) is None
        assert_engine_exact(model, normal(count, 3))
        assert_engine_exact(build(WithOwnParameter()), normal(count, 3))

    @pytest.mark.filterwarnings("ignore:There is a performance drop")
    def test_other_modules_of_torch(self):
        assert_engine_exact(build(nn.ConvTranspose2d(2, 3, 2, stride=2)), normal(3, 2, 3, 3))
        assert_engine_exact(build(nn.Conv3d(2, 3, 2)), normal(3, 2, 3, 3, 3))
        assert_engine_exact(build(nn.PReLU(2)), normal(3, 2, 4))
        assert_engine_exact(build(nn.Bilinear(2, 3, 2)), (normal(4, 2), normal(4, 3).cos()))

    @pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.LayerNorm(3), nn.Conv1d(3, 2, 1)])
    def test_functions_agree_with_the_rules(self, layer, monkeypatch):
        """The same layer without its rule, by its function's rule, and mapped over examples."""
        layer, inputs = build(layer), normal(4, 3, 3)
        by_rule = by_engine(BookkeepingEngine(), layer, inputs)
        monkeypatch.setattr(rule, "_RULES", {})
        assert_close(by_engine(BookkeepingEngine(), layer, inputs), by_rule, 1e-10)
        monkeypatch.setattr(watch, "RULED", {})
        assert_close(by_engine(BookkeepingEngine(), layer, inputs), by_rule, 1e-10)

    def test_registered_rule_is_used(self):
        class Gain(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gain = nn.Parameter(torch.ones(3))

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.gain * inputs

        class SameGain(Gain):
            pass

        class OtherGain(Gain):
            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return 2 * self.gain * inputs

        used = []

        def rule(call: LayerCall):
            used.append(call)
            return {(call.module.gain,): Dense((call.input * call.gradient,))}

        register_rule(Gain, rule)
        for model in (Gain(), SameGain()):
            used.clear()
            assert_engine_exact(build(model), normal(4, 3))
            assert used
        used.clear()
        assert_engine_exact(build(OtherGain()), normal(4, 3))
        assert not used

    @pytest.mark.parametrize("keep_output", [False, True])
    def test_rule_that_reads_the_output(self, keep_output):
        class Exponential(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rate = nn.Parameter(torch.ones(3))

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return torch.exp(self.rate * inputs)

        outputs = []

        def rule(call: LayerCall):
            outputs.append(call.output)
            value = torch.exp(call.module.rate * call.input)
            return {(call.module.rate,): Dense((call.input * value * call.gradient,))}

        register_rule(Exponential, rule, keep_output=keep_output)
        model, examples = build(Exponential()), normal(4, 3)
        assert_engine_exact(model, examples)
        assert torch.equal(outputs[-1][:4], model(examples)) if keep_output else outputs[-1] is None

    def test_rule_that_takes_a_note_of_the_output(self):
        class Shift(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.shift = nn.Parameter(torch.ones(3))

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return inputs + self.shift

        notes = []

        def shift_rule(call: LayerCall):
            notes.append(call.noted)
            return {(call.module.shift,): Dense((call.gradient,))}

        register_rule(Shift, shift_rule, note=lambda output: output.grad_fn.name())
        assert_engine_exact(build(Shift()), normal(4, 3))
        assert set(notes) == {"AddBackward0"}

    def test_rule_that_groups_parameters_in_two_ways(self):
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.one * inputs + self.other

        calls = []

        def rule(call: LayerCall):
            calls.append(call)
            one, other = call.input * call.gradient, call.gradient
            if len(calls) % 2:
                return {(call.module.one, call.module.other): Dense((one, other))}
            return {(call.module.one,): Dense((one,)), (call.module.other,): Dense((other,))}

        register_rule(Two, rule)
        assert_engine_exact(build(Twice(Two())), normal(4, 3))


class Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.layer(inputs)))


class TestModuleCalledTwice:
    @pytest.mark.parametrize(
        ("layer", "shape"),
        [
            (nn.Linear(3, 3), (3,)),
            (nn.Linear(3, 3), (2, 3)),
            (nn.Conv2d(2, 2, 3, padding=1), (2, 4, 4)),
            (nn.LayerNorm(3), (2, 3)),
            (Scale(3), (3,)),
        ],
    )
    @pytest.mark.parametrize("count", COUNTS)
    def test_calls_are_summed(self, layer, shape, count):
        assert_engine_exact(build(Twice(layer)), normal(count, *shape))

    def test_embedding_and_attention(self):
        class Words(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table, self.mix = nn.Embedding(4, 2), nn.MultiheadAttention(2, 1, batch_first=True)

            def forward(self, words: torch.Tensor) -> torch.Tensor:
                one, other = self.table(words[:, :2]), self.table(words[:, 2:])
                return self.mix(one, one, one)[0] * self.mix(other, other, other)[0]

        words = torch.tensor([[0, 1, 1, 3], [2, 2, 2, 0], [1, 0, 3, 1]])
        assert_engine_exact(build(Words()), words)

    def test_in_small_chunks(self, monkeypatch):
        assert CHUNK_ELEMENTS > 1
        monkeypatch.setattr(forms, "CHUNK_ELEMENTS", 1)
        assert_engine_exact(build(Twice(nn.LayerNorm(3))), normal(7, 3))


class TestContributionsThatCancel:
    """What an example adds to a sum is never longer than the norm that it was clipped by, whatever roundings hide."""

    CANCELLING = (1e11, 1e3, -1e11)

    @pytest.mark.parametrize("table", [2, 500])
    def test_lookups(self, table):
        outputs = torch.tensor(self.CANCELLING).view(1, 3, 1)
        form = Lookups(outputs, torch.zeros(1, 3, dtype=torch.long), table)
        assert form._prefers_tables() == (table == 2)
        assert form.bounds().norms.sqrt() >= form.weighted_sum(torch.ones(1).double(), single=True)[0].norm() == 1e3

    @pytest.mark.parametrize("gram", [True, False])
    @pytest.mark.parametrize("kernel", [(1, 1), (1, 2)])
    def test_convolutions(self, gram, kernel):
        moved, measured = [], []
        for seed in range(60):
            places = torch.randperm(49, generator=torch.Generator().manual_seed(seed))[:3]
            outputs = torch.zeros(1, 1, 7, 7)
            outputs.view(-1)[places] = torch.tensor(self.CANCELLING)
            inputs = torch.ones(1, 1, 7, 6 + kernel[1])
            form = Convolved(inputs, outputs, Geometry((1, 1, *kernel), kernel, (1, 1), (0, 0), (1, 1), 1), gram)
            measured.append(form.bounds().norms.sqrt().item())
            moved.append(form.weighted_sum(torch.ones(1).double(), single=True)[0].norm().item())
        assert (torch.tensor(measured) >= torch.tensor(moved)).all()
        assert max(moved) >= 1e3

    def test_uses_of_one_layer(self):
        uses = [Dense((torch.tensor([[first], [second]]),)) for first, second in ((1e20, 1.0), (-1e20, 0.0))]
        ones = torch.ones(2).double()
        (total,) = Summed(tuple(uses), 2).weighted_sum(ones, single=True)
        assert total.item() == 1.0, "the first example's uses cancel, and do nothing to the second's"
        apart = [use.weighted_sum(ones, single=True)[0] for use in uses]
        assert (apart[0] + apart[1]).item() == 0.0, "summed apart, they would"


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(3, 2), (3,)),
        (nn.Linear(7, 8), (2, 7)),
        (nn.Linear(3, 2), (4, 3)),
        (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (3,)),
        (nn.Conv2d(2, 3, 3, padding=1), (2, 4, 4)),
        (nn.Conv2d(2, 3, 3, padding=1), (2, 9, 9)),
        (nn.GroupNorm(2, 4), (4, 3)),
    ],
)
@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_sums_in_pieces(layer, shape, at_once, monkeypatch):
    monkeypatch.setattr(sums, "_PLACES_AT_ONCE", at_once)
    monkeypatch.setattr(sums, "_ROWS_AT_ONCE", at_once)
    assert_engine_exact(build(nn.Sequential(layer, nn.Tanh())), normal(7, *shape))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("at_once", [1, 3])
def test_sums_of_sequences_in_pieces(kind, batch_first, at_once, monkeypatch):
    """Pieces of a sequence by place end in the middle of an example."""
    monkeypatch.setattr(sums, "_PLACES_AT_ONCE", at_once)
    assert_engine_exact(build(Recurrent(kind(11, 12, batch_first=batch_first))), normal(7, 2, 11))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("count", COUNTS)
def test_recurrent_layers_agree_with_the_reference_engine(kind, count):
    model, examples = build(Recurrent(kind(3, 2, num_layers=2, batch_first=True))), normal(count, 4, 3)
    assert_close(by_engine(BookkeepingEngine(), model, examples), by_engine(ReferenceEngine(), model, examples))


@pytest.mark.parametrize("count", COUNTS)
def test_it_agrees_with_the_reference_engine(count):
    model = build(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    )
    examples = normal(count, 1, 3, 3)
    expected = by_engine(ReferenceEngine(), model, examples, squared_output)
    assert_close(by_engine(BookkeepingEngine(), model, examples, squared_output), expected)
