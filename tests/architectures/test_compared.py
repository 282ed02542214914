"""A short form of checks/models.py: some of its configurations, and that it would notice what it looks for."""

from __future__ import annotations

import dataclasses

import pytest
from torch import nn

from tests.architectures import adapters, compared, language, torch_nn
from tests.architectures.compared import outcome
from tests.architectures.configuration import Configuration, distances, normal
from tests.gradients.conftest import leave_sizes_unprobed

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages

CONFIGURATIONS = {**torch_nn.configurations(), **language.configurations(), **adapters.configurations()}

EXACT = [
    "torch.nn: Conv2d, depthwise",
    "torch.nn: LSTM, packed",
    "torch.nn: in-place activations",
    "torch.nn: scale and shift",
    "transformers: BertForSequenceClassification",
    "transformers: LlamaForCausalLM",
    "transformers: ConvNextForImageClassification",
    "peft: LoRA with dropout on BERT",
    "peft: LoRA on GPT-2",
    "peft: LNTuning on BERT",
]


@pytest.fixture(autouse=True)
def _sizes_unprobed(monkeypatch):
    leave_sizes_unprobed(monkeypatch)


@pytest.mark.parametrize("name", EXACT)
def test_exact_as_it_is(name):
    found = outcome(CONFIGURATIONS[name])
    assert (found.kind, found.remedies, found.reason) == ("exact", (), "")


@pytest.mark.parametrize("name", ["torch.nn: BatchNorm1d", "torch.nn: BatchNorm2d"])
def test_exact_after_the_documented_replacement(name):
    found = outcome(CONFIGURATIONS[name])
    assert (found.kind, found.remedies) == ("exact", ("replace_batchnorm",))
    assert "it mixes the examples of a batch" in found.reason


def test_experts_in_an_order_of_their_own_are_refused_with_a_remedy():
    found = outcome(CONFIGURATIONS["transformers: MixtralForCausalLM"])
    assert (found.kind, found.remedies) == ("exact", ("batched_mm",))
    assert "places are in the order of experts" in found.reason


def test_what_mixes_examples_is_refused_with_a_reason():
    class Mixing(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) - super().forward(inputs).mean(0)

    found = outcome(Configuration("torch.nn", lambda: Mixing(3, 2), normal(3), distances))
    assert found.kind == "refused"
    assert "mix the examples" in found.reason


def test_a_model_that_fails_is_a_crash():
    class Failing(nn.Linear):
        def forward(self, inputs):
            raise RuntimeError("it fails")

    assert outcome(Configuration("torch.nn", lambda: Failing(3, 2), normal(3), distances)).kind == "crash"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda found: dataclasses.replace(found, norms=found.norms * (1 + 1e-4)), "norms differ by 1"),
        (lambda found: dataclasses.replace(found, total=found.total * (1 + 1e-4)), "the sum differs"),
    ],
)
def test_an_engine_that_is_slightly_off_is_wrong(monkeypatch, spoil, said):
    by_engine = compared._by_engine
    monkeypatch.setattr(compared, "_by_engine", lambda *given: spoil(by_engine(*given)))
    found = outcome(CONFIGURATIONS["torch.nn: Linear"])
    assert found.kind == "wrong"
    assert said in found.reason


def test_norms_in_float32_that_are_too_small_are_wrong(monkeypatch):
    """Where float64 is exact: an engine that forgets to round its norms up far enough."""
    by_engine = compared._by_engine

    def lower(engine, model, batch, losses):
        found, double = by_engine(engine, model, batch, losses), next(model.parameters()).dtype.itemsize == 8
        return found if double else dataclasses.replace(found, norms=found.norms * (1 - 1e-3))

    monkeypatch.setattr(compared, "_by_engine", lower)
    found = outcome(CONFIGURATIONS["torch.nn: Linear"])
    assert (found.kind, found.norms < 1e-5) == ("wrong", True)
    assert "below" in found.reason
