"""Networks of other packages that are measured: what they take and give, and what is said where they are missing."""

from __future__ import annotations

import pytest
from torch.nn import functional

from inosgd import _extras
from inosgd.bench.methods import METHODS
from inosgd.bench.models import ALL, MODELS, OTHERS
from inosgd.errors import MissingExtraError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers


@pytest.mark.parametrize("name", ["bert-mini", "lora-bert-mini", "gpt2-tiny", "llama-tiny", "resnet18-64"])
def test_outputs_fit_the_targets(name):
    model, inputs, targets = OTHERS[name].make(batch_size=2)
    assert model.training
    assert functional.cross_entropy(model(inputs), targets, reduction="none").shape == targets.shape


def test_frozen_parameters_stay_where_they_are_in_every_method():
    model, inputs, targets = OTHERS["lora-bert-mini"].make(batch_size=2)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    for method in ("plain", "engine"):
        METHODS[method](model, inputs, targets)()
    changed = {name for name, each in model.named_parameters() if not each.equal(before[name])}
    assert changed == {name for name, each in model.named_parameters() if each.requires_grad}


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(_extras, "find_spec", lambda _: None)
    for name in ("vit-tiny", "mobilenetv3-small", "bert-mini"):
        with pytest.raises(MissingExtraError, match=r"inosgd\[models\]"):
            OTHERS[name].make(batch_size=2)


def test_networks_of_this_package_come_first():
    assert list(ALL)[: len(MODELS)] == list(MODELS)
    assert not set(MODELS) & set(OTHERS)
