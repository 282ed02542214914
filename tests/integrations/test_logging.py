"""What is logged is public: no example has a say in it."""

from __future__ import annotations

import io
import json
import math
from contextlib import closing

import pytest
import torch

from inosgd import INO_SGD, SeededSource, Trainer, TrainingState, fit
from inosgd.errors import InvalidArgumentError
from inosgd.integrations.logging import as_line, log_public, public_numbers
from inosgd.runs.resuming import begin, train_durably
from inosgd.training import Callback, StepDiagnostics
from tests import tiny

KEYS = {"step", "epsilon", "noise_scale", "expected_batch_size", "learning_rate"}


def trained(callback: Callback, *, data: int = 1, seed: int = 0) -> TrainingState:
    """A training on data of its own, with the owners of all others."""
    generator, owners = torch.Generator().manual_seed(data), tiny.owners_of(tiny.PLAN.table)
    inputs = data * torch.randn(len(owners), 6, generator=generator)
    trainer = Trainer(tiny.PLAN, owners, (inputs, (inputs[:, 0] > 0).long()), tiny.LOSSES, INO_SGD)
    network = tiny.model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    state = TrainingState.start(trainer, network, optimizer, SeededSource(seed))
    return fit(trainer, state, callbacks=[callback])


def logged(**of) -> str:
    file = io.StringIO()
    trained(log_public(file, steps=4), **of)
    return file.getvalue()


def test_every_nth_step_is_a_line_of_public_numbers():
    lines = [json.loads(line) for line in logged().splitlines()]
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert all(set(line) == KEYS for line in lines)
    last, terms = lines[-1], tiny.PLAN.at(0)
    assert last["noise_scale"] == terms.noise_scale
    assert last["expected_batch_size"] == terms.expected_batch_size
    assert last["learning_rate"] == 0.1
    assert last["epsilon"] == dict(zip(tiny.PLAN.table.names, tiny.PLAN.spent.tolist(), strict=True))
    assert lines[0]["epsilon"]["strict"] < last["epsilon"]["strict"] <= 1.0


def test_other_examples_and_other_randomness_log_the_same_bytes():
    assert logged(data=1, seed=0) == logged(data=7, seed=3)


def test_a_log_of_batch_sizes_would_differ():
    """The control: what a step reports of its batch is not public."""

    def sizes(**of) -> list[int]:
        found: list[int] = []
        trained(lambda _, diagnostics: found.append(diagnostics.batch_size), **of)
        return found

    assert sizes(data=1, seed=0) != sizes(data=7, seed=3)


def test_diagnostics_of_the_step_are_not_looked_at():
    class Secret(StepDiagnostics):
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was read")

    state = trained(lambda *_: None)
    found: list = []
    log_public(found.append, steps=1)(state, object.__new__(Secret))
    assert [set(numbers) for numbers in found] == [KEYS]


def test_a_run_appends_to_a_path(tmp_path):
    run, path = tiny.new_run(tmp_path), tmp_path / "public.jsonl"
    trainer, network, optimizer = tiny.parts(tiny.PLAN)
    with run.lock() as locked:
        state = begin(locked, trainer, network, optimizer, SeededSource(0))
        with closing(state.ledger):
            train_durably(locked, trainer, state, every=6, steps=6, callbacks=[log_public(path, steps=3)])
            train_durably(locked, trainer, state, every=6, callbacks=[log_public(str(path), steps=6)])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [3, 6, 12]


def test_rates_of_several_groups_and_infinite_epsilons():
    state = trained(lambda *_: None)
    state.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.5})
    assert public_numbers(state)["learning_rate"] == [0.1, 0.5]
    assert json.loads(as_line({"step": 1, "epsilon": {"a": math.inf}}))["epsilon"] == {"a": "inf"}


def test_errors():
    trainer, network, optimizer = tiny.parts(tiny.PLAN)
    with pytest.raises(InvalidArgumentError, match="no step was taken yet"):
        public_numbers(TrainingState.start(trainer, network, optimizer, SeededSource(0)))
    with pytest.raises(InvalidArgumentError, match="to=3: give a path, an open text file, or a function"):
        log_public(3)
    with pytest.raises(InvalidArgumentError, match="steps=0"):
        log_public(print, steps=0)
