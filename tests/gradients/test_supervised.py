"""Losses of models that take arguments by name, return logits among other things, or have classes last."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, OffsetLosses, ReferenceEngine, supervised
from tests.gradients.gradient_oracle import assert_close, default_coefficients

pytestmark = pytest.mark.usefixtures("sizes_unprobed")

COUNT, PLACES, CLASSES = 5, 4, 3
OFFSETS = np.array([0.5, -1.0, 2.0])
WRAPPED = {
    "tensor": lambda logits: logits,
    "attribute": lambda logits: SimpleNamespace(loss=None, logits=logits),
    "dictionary": lambda logits: OrderedDict(logits=logits, hidden=None),
}


class Tagger(nn.Module):
    """One row of logits per word, or per text."""

    def __init__(self, wrapped=WRAPPED["tensor"], pooled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(11, 6), nn.Linear(6, CLASSES)
        self.wrapped, self.pooled = wrapped, pooled

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, labels=None):
        assert labels is None, "a loss inside the model would be a mean over the batch"
        hidden = self.words(input_ids)
        if attention_mask is not None:
            hidden = hidden * attention_mask.unsqueeze(-1)
        return self.wrapped(self.head(torch.tanh(hidden.mean(1) if self.pooled else hidden)))


def batch(pooled: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (COUNT,) if pooled else (COUNT, PLACES), generator=generator)
    if not pooled:
        labels[1, 2:] = -100
    return {
        "input_ids": torch.randint(0, 11, (COUNT, PLACES), generator=generator),
        "attention_mask": (torch.arange(PLACES) <= torch.arange(COUNT).unsqueeze(1)).long(),
        "labels": labels,
    }


def by_hand(model: nn.Module, examples: dict[str, torch.Tensor], offsets: np.ndarray) -> torch.Tensor:
    """Example by example, place by place."""
    logits = model.head(torch.tanh(model.words(examples["input_ids"]) * examples["attention_mask"].unsqueeze(-1)))
    rows = (logits + torch.from_numpy(offsets)).log_softmax(-1)
    losses = []
    for example, labels in zip(rows, examples["labels"], strict=True):
        found = [-row[label] for row, label in zip(example, labels.tolist(), strict=True) if label >= 0]
        losses.append(torch.stack(found).sum() / PLACES)
    return torch.stack(losses)


@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("offsets", [None, OFFSETS], ids=["plain", "offsets"])
def test_dictionaries_with_classes_last(wrapped, offsets):
    model, examples, losses = Tagger(wrapped).double(), batch(), supervised(F.cross_entropy, classes_last=True)
    assert isinstance(losses, OffsetLosses)
    if offsets is not None:
        losses = losses.with_offsets(offsets)
    found = losses(model, examples)
    expected = by_hand(model, examples, np.zeros(CLASSES) if offsets is None else offsets)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("engine", [BookkeepingEngine(), ReferenceEngine()], ids=["bookkeeping", "reference"])
def test_engines(engine):
    model, examples = Tagger(WRAPPED["attribute"]).double(), batch()
    losses = supervised(F.cross_entropy, classes_last=True).with_offsets(OFFSETS)
    with engine.on(model, losses, examples) as gradients:
        measured, total = gradients.measure(), gradients.weighted_sum(default_coefficients(COUNT))
    rows = [
        torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)])
        for loss in by_hand(model, examples, OFFSETS)
    ]
    expected = SimpleNamespace(
        losses=by_hand(model, examples, OFFSETS).detach().numpy(),
        norms=torch.stack(rows).norm(dim=1).numpy(),
        total=(torch.from_numpy(default_coefficients(COUNT)) @ torch.stack(rows)).numpy(),
    )
    assert_close(SimpleNamespace(losses=measured.losses, norms=measured.grad_norms, total=total.numpy()), expected)


def test_as_many_places_as_classes():
    """No shape tells which is which: only ``classes_last`` does, for the offsets too."""
    model, examples = Tagger().double(), {key: value[:, :CLASSES] for key, value in batch().items()}
    outputs = model(examples["input_ids"], examples["attention_mask"]) + torch.from_numpy(OFFSETS)
    expected = F.cross_entropy(outputs.transpose(1, 2), examples["labels"], reduction="none").mean(1)
    losses = supervised(F.cross_entropy, classes_last=True).with_offsets(OFFSETS)
    torch.testing.assert_close(losses(model, examples), expected)
    assert not torch.allclose(supervised(F.cross_entropy).with_offsets(OFFSETS)(model, examples), expected)


@pytest.mark.parametrize("classes_last", [False, True])
def test_one_label_per_example(classes_last):
    model, examples = Tagger(pooled=True).double(), batch(pooled=True)
    losses = supervised(F.cross_entropy, classes_last=classes_last).with_offsets(OFFSETS)
    named = {"input_ids": examples["input_ids"]}
    expected = F.cross_entropy(model(**named) + torch.from_numpy(OFFSETS), examples["labels"], reduction="none")
    for given in (
        {**named, "labels": examples["labels"]},
        (*named.values(), examples["labels"]),
    ):
        torch.testing.assert_close(losses(model, given), expected)
    whole = nn.Module()
    whole.forward = lambda inputs: model(**inputs)  # inputs of a pair are given as they are
    torch.testing.assert_close(losses(whole, (named, examples["labels"])), expected)
    other = supervised(F.cross_entropy, targets="answers").with_offsets(OFFSETS)
    torch.testing.assert_close(other(model, {**named, "answers": examples["labels"]}), expected)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ({"input_ids": torch.zeros(2, 3)}, r"\['input_ids'\] without targets under 'labels'.*targets="),
        (torch.zeros(2, 3), r"Tensor is neither a pair"),
        ((torch.zeros(2, 3),) * 3, r"tuple is neither a pair"),
    ],
)
def test_other_batches_are_refused(examples, message):
    with pytest.raises(InvalidArgumentError, match=message):
        supervised(F.cross_entropy)(Tagger(), examples)


def test_other_outputs_are_refused():
    for wrapped in (lambda logits: (logits,), lambda logits: {"scores": logits}):
        with pytest.raises(InvalidArgumentError, match=r"(tuple|dict) without logits"):
            supervised(F.cross_entropy)(Tagger(wrapped), batch())
    with pytest.raises(InvalidArgumentError, match="classes_last needs"):
        supervised(F.cross_entropy, classes_last=True)(Tagger(lambda logits: logits.sum((1, 2))), batch())
    with pytest.raises(InvalidArgumentError, match="last with classes_last=True"):
        supervised(F.cross_entropy).with_offsets(OFFSETS)(Tagger(), batch())


def test_an_error_of_shapes_points_to_classes_last():
    with pytest.raises((RuntimeError, ValueError)) as raised:
        supervised(F.cross_entropy)(Tagger(), batch())
    assert any("classes_last=True" in note for note in raised.value.__notes__)


def pooled_losses(loss) -> torch.Tensor:
    return supervised(loss)(Tagger(pooled=True), batch(pooled=True))


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": torch.tensor([1.0, 2.0, 3.0])}])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_module_is_taken_without_its_reduction(options, reduction):
    module = nn.CrossEntropyLoss(reduction=reduction, **options)
    expected = pooled_losses(lambda *args, reduction: F.cross_entropy(*args, reduction=reduction, **options))
    torch.testing.assert_close(pooled_losses(module), expected, rtol=0, atol=0)
    assert module.reduction == reduction


@pytest.mark.parametrize("loss", [lambda outputs, targets: outputs, nn.Linear(2, 2)])
def test_losses_that_cannot_be_had_for_each_example_are_refused(loss):
    with pytest.raises(InvalidArgumentError, match=r"loss: .*reduction"):
        supervised(loss)
