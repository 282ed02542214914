"""What a study asks for is what is built."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from inosgd import BetaTail, Fairness, StepTail
from inosgd.errors import InfeasibleError, InvalidArgumentError
from inosgd.method import METHODS
from inosgd.order import ORDERS
from inosgd.plan_config import VARIANTS
from inosgd.study.building import build
from inosgd.study.built_in import STUDIES
from inosgd.study.config import OPTIMIZERS, _most_steps, optimizer_for, plan_for
from inosgd.study.from_file import config_of
from inosgd.study.models import BUILT_IN, DECIDED_BY_THE_DATA, argument_names, build_model
from inosgd.study.reading import parse_study
from inosgd.study.schema import FairnessSection, TrainingSection
from tests.study.writers import STUDY


def training(**keys) -> TrainingSection:
    return TrainingSection(learning_rate=0.5, steps=1, expected_batch_size=8.0, clipping_threshold=1.0, **keys)


def choices(field: str) -> set[str]:
    from typing import get_args

    annotation = TrainingSection.model_fields[field].annotation
    literals = [annotation, *get_args(annotation)]
    return {choice for literal in literals for choice in get_args(literal) if isinstance(choice, str)}


def test_the_schema_offers_what_there_is():
    assert choices("method") == set(METHODS)
    assert choices("variant") == set(VARIANTS)
    assert choices("order") == set(ORDERS)
    assert choices("optimizer") == set(OPTIMIZERS)
    defaults = FairnessSection()
    assert Fairness(defaults.exponent, defaults.max_ratio, defaults.mix) == Fairness()


def test_methods_keep_what_the_study_does_not_change():
    assert config_of(training(method="ino-sgd")).method == METHODS["ino-sgd"]
    changed = config_of(
        training(method="ino-sgd", variant="scale", order="random", tail={"shape": "beta", "a": 2.0, "share": 0.3})
    ).method
    assert changed.variant == "scale"
    assert changed.order is ORDERS["random"]
    assert changed.importance.shape == BetaTail(2.0, 1.0)
    assert (changed.importance.share, changed.importance.length) == (0.3, None)
    step = config_of(training(method="ino-sgd", tail={"shape": "step", "levels": [0.5, 0.25], "length": 2.0})).method
    assert step.importance.shape == StepTail((0.5, 0.25))
    assert (step.importance.share, step.importance.length) == (None, 2.0)


def test_optimizers_get_what_is_given_and_torchs_defaults_otherwise():
    model = torch.nn.Linear(2, 2)
    optimizer = optimizer_for(config_of(training(momentum=0.9, weight_decay=0.1)), model)
    assert type(optimizer) is torch.optim.SGD
    assert {key: optimizer.defaults[key] for key in ("lr", "momentum", "weight_decay")} == {
        "lr": 0.5, "momentum": 0.9, "weight_decay": 0.1
    }  # fmt: skip
    adam = optimizer_for(config_of(training(optimizer="adam")), model)
    assert adam.defaults["betas"] == torch.optim.Adam(model.parameters()).defaults["betas"]


@pytest.mark.parametrize(
    ("name", "inputs", "symbols", "batch"),
    [
        ("mlp", (5,), None, torch.zeros(3, 5)),
        ("mlp", (1, 9, 9), None, torch.zeros(3, 1, 9, 9)),
        ("cnn", (3, 16, 12), None, torch.zeros(3, 3, 16, 12)),
        ("cnn", (9, 9), None, torch.zeros(3, 9, 9)),
        ("lstm", (7,), 20, torch.zeros(3, 7, dtype=torch.long)),
    ],
)
def test_models_fit_the_shape_of_the_data(name, inputs, symbols, batch):
    model = build_model(name, {}, inputs=inputs, symbols=symbols, outputs=4, seed=0)
    assert model(batch).shape == (3, 4)
    again = build_model(name, {}, inputs=inputs, symbols=symbols, outputs=4, seed=0)
    assert torch.equal(model(batch), again(batch))


def test_arguments_of_models_are_those_the_data_do_not_decide():
    for name in BUILT_IN:
        assert not set(argument_names(name)) & DECIDED_BY_THE_DATA
        assert argument_names(name)


@pytest.mark.parametrize("name", ["os", "os:", "os.system", "../os:system", "os:system()", ":x"])
def test_what_is_no_factory_is_never_imported(name):
    with pytest.raises(ValueError, match="is no model"):
        build_model(name, {}, inputs=(1,), symbols=None, outputs=2, seed=0, allowed_factory=name)


def test_most_steps_is_the_last_that_fits():
    calls = []

    def needed(steps: int) -> float:
        calls.append(steps)
        return steps**0.5

    assert _most_steps(needed, 10.0) == 100
    assert len(calls) < 20
    with pytest.raises(InfeasibleError, match="a single step needs 1"):
        _most_steps(needed, 0.5)


def test_a_study_reads_the_same_from_its_text(tmp_path):
    study = parse_study(STUDY, tmp_path / "x.toml", tmp_path)
    assert study.locate("cases.csv") == tmp_path / "cases.csv"
    assert study.schema.training.steps == 12
    assert study.schema.training.seed is None


def test_a_plan_for_other_owners_or_larger_budgets_is_refused():
    """Owners of the same sizes under other names, or in another order, would be charged for each other's examples."""
    study = STUDIES["breast-cancer"].changed({"steps": 2})
    data = study.split(0)
    table = data.owners.table

    def built_for(**changes):
        return build(study, data, plan_for(study.config, dataclasses.replace(table, **changes), verify=False))

    assert built_for(epsilons=table.epsilons / 2).trainer.plan.table.epsilons[0] == table.epsilons[0] / 2
    for changes in (
        {"names": ("x", "y")},
        {"names": table.names[::-1]},
        {"epsilons": table.epsilons * 1.01},
        {"deltas": table.deltas * 1.01},
    ):
        with pytest.raises(InvalidArgumentError, match="other owners, or for larger budgets"):
            built_for(**changes)
    with pytest.raises(InvalidArgumentError, match=r"differ from table\.sizes"):
        built_for(sizes=table.sizes + 1)
