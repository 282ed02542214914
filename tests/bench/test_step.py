"""The benchmark of one step: its shape, and that its models are trained exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from inosgd.averaging import RunningAverage
from inosgd.bench import bench_step, format_markdown
from inosgd.bench.memory import peak_memory
from inosgd.bench.methods import ADDITIONS, METHODS, all_equal, ordered, private
from inosgd.bench.models import MODELS
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, Measured, supervised
from tests.gradients.gradient_oracle import assert_engine_exact

SIZES = {"mlp": 7, "mnist": 4, "lstm": 4, "cifar": 3, "resnet18": 2, "transformer": 2}
THINNED = {"resnet18": 4}
"""Every how many pixels are taken of images: a network of many layers is slow, and its layers are the same on few."""


@pytest.mark.parametrize("name", MODELS)
def test_engine_is_exact_after_some_training_steps(name):
    model, inputs, targets = MODELS[name].make(batch_size=SIZES[name])
    model, inputs = model.double(), inputs.double() if inputs.is_floating_point() else inputs
    if name in THINNED:
        inputs = inputs[..., :: THINNED[name], :: THINNED[name]].contiguous()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = private(BookkeepingEngine(), model, inputs, targets, ordered)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(2):
            step()
    assert all(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert_engine_exact(model, (inputs, targets), supervised(functional.cross_entropy))


def test_weights_of_the_two_methods():
    measured = Measured(np.linspace(0, 1, 10), np.ones(10))
    assert all_equal(measured).tolist() == [1.0] * 10
    weights = ordered(measured)
    assert (np.diff(weights) >= 0).all()
    assert weights[0] < 1
    assert weights[-1] == 1


def test_result_is_json_with_ratios(in_this_process):
    said = []
    result = bench_step(
        ["mlp"],
        ["engine", "plain-channels-last", "reference"],
        repeats=2,
        memory=False,
        ino_over_idp=False,
        additions=False,
        notice=said.append,
    )
    assert [line.partition(":")[0] for line in said] == ["mlp, engine", "mlp, plain-channels-last", "mlp, reference"]
    entries = json.loads(json.dumps(result))["models"]["mlp"]
    assert list(entries) == ["plain", "engine", "plain-channels-last", "reference"]
    assert "images" in entries["plain-channels-last"]["error"]
    assert entries["engine"]["wall"] > 0
    assert entries["engine"]["cpu"] > 0
    assert entries["reference"]["wall"] > 1, "materialising every gradient is not cheaper than a plain step"
    table = format_markdown(result)
    assert "| method | mlp |" in table
    assert f"| engine | {entries['engine']['wall']:.2f} |" in table


@pytest.mark.usefixtures("engine_tries_models")
def test_additions_do_what_they_are_named_for_and_are_in_the_table():
    model, inputs, targets = MODELS["mlp"].make(batch_size=4)
    for build in ADDITIONS.values():
        build(model, inputs, targets)()
    averaged, seen = ADDITIONS["averaging"](model, inputs, targets), []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunningAverage, "update", lambda _, given: seen.append(given))
        averaged()
    assert seen == [model]
    result = {"machine": {"threads": 1, "torch": "", "kernel": True}, "repeats": 1, "models": {}, "ino_over_idp": None}
    table = format_markdown({**result, "additions": {"the same code twice": {"mlp": 1.0}, "averaging": {"mlp": 1.01}}})
    assert "| addition | mlp |\n|---|---|\n| the same code twice | 1.000 |\n| averaging | 1.010 |\n" in table


def test_memory_is_measured_in_another_process():
    assert 2**16 < peak_memory("mlp", "engine") < 2**30


@pytest.mark.long
def test_memory_of_the_engine_is_that_of_a_plain_step_and_little_more():
    plain, engine = (peak_memory("lstm", method) for method in ("plain", "engine"))
    assert 2**20 < engine < 3 * plain


def test_the_memory_of_a_method_that_cannot_train_a_model(monkeypatch):
    def failing(*given):
        raise InosgdError(f"no {given}")

    monkeypatch.setattr("inosgd.bench.memory.in_new_process", failing)
    with pytest.raises(InosgdError, match=r"memory of plain-channels-last on mlp: no .*'measure', 'mlp'"):
        peak_memory("mlp", "plain-channels-last")


@pytest.mark.parametrize(
    "arguments", [{"models": ["resnet"]}, {"models": []}, {"methods": ["engines"]}, {"repeats": 0}]
)
def test_unknown_names(arguments):
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        bench_step(**arguments)


def test_every_method_does_a_step():
    for name, method in METHODS.items():
        if name.startswith("opacus"):
            continue
        model, inputs, targets = MODELS["mnist"].make(batch_size=4)
        before = model[0].weight.detach().clone()
        method(model, inputs, targets)()
        assert not torch.equal(before, model[0].weight), name
