"""Averages of iterates: the right weights, the same bits after any interruption, and nothing of steps given up."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from inosgd import Budget, SecureSource, SeededSource, TrainingState, fit
from inosgd.analysis.suggestions import NORMS
from inosgd.averaging import KINDS, Averaging, RunningAverage
from inosgd.compare.entrant import Entrant
from inosgd.compare.results import Result
from inosgd.compare.training import entered_data, train_once
from inosgd.errors import CheckpointError, InvalidArgumentError
from inosgd.runs.progression import Changes, carry_out, propose
from inosgd.runs.resuming import begin, resume, train_durably
from inosgd.study.running import (
    begin_training,
    create_run,
    finish,
    prepare,
    prepare_again,
    resume_training,
    save_checkpoint,
)
from inosgd.training import model_digest
from inosgd.tuning.candidates import Candidate
from inosgd.tuning.trials import TrialTask, run_trial
from tests import tiny
from tests.studies import written_study

BOTH = [Averaging("exponential", decay=0.7), Averaging("tail", share=0.5)]


def weights_of(averaging: Averaging, steps: int, now: int) -> np.ndarray:
    """The weights of w_1, ..., w_now by the definition; all on the last one where none is averaged yet."""
    if averaging.kind == "exponential":
        weights = averaging.decay ** np.arange(now - 1, -1, -1.0)
    else:
        weights = (np.arange(1, now + 1) > steps - max(1, round(averaging.share * steps))).astype(float)
    if not weights.sum():
        weights[-1] = 1.0
    return weights / weights.sum()


averagings = st.one_of(
    st.floats(0, 0.999).map(lambda decay: Averaging("exponential", decay=decay)),
    st.floats(0.001, 1).map(lambda share: Averaging("tail", share=share)),
)


@settings(max_examples=60, deadline=None)
@given(averagings, st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_averages_have_the_weights_that_they_say(averaging, steps, seed):
    iterates = np.random.default_rng(seed).normal(size=(steps, 3)).astype(np.float32)
    model = nn.Linear(3, 1, bias=False)
    average = RunningAverage(averaging, steps)
    for now, iterate in enumerate(iterates, start=1):
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(iterate)[None])
        average.update(model)
        expected = weights_of(averaging, steps, now) @ iterates[:now].astype(np.float64)
        with average.in_place_of(model) as averaged:
            np.testing.assert_allclose(averaged.weight.detach().numpy()[0], expected, rtol=1e-5, atol=1e-6)
        assert model.weight.detach().numpy()[0].tobytes() == iterate.tobytes()


class Counting(nn.Module):
    """A buffer, a frozen parameter and a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.frozen = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("seen", torch.tensor(0))


def test_buffers_and_frozen_parameters_are_the_last_iterates_and_all_come_back_after_an_error():
    model, average = Counting(), RunningAverage(Averaging("tail", share=1.0), 2)
    for value in (1.0, 3.0):
        with torch.no_grad():
            model.trained.fill_(value)
            model.frozen.fill_(value)
            model.seen += 1
        average.update(model)
    with pytest.raises(RuntimeError, match="inside"), average.in_place_of(model):
        assert model.trained.tolist() == [2.0, 2.0]
        assert model.frozen.tolist() == [3.0, 3.0]
        assert int(model.seen) == 2
        raise RuntimeError("inside")
    assert model.trained.tolist() == [3.0, 3.0]


def test_small_steps_are_not_lost_in_rounding():
    """The mean of iterates about 1 is exact to 1e-12; in float32 it would not be."""
    model, average = nn.Linear(1, 1, bias=False), RunningAverage(Averaging("tail", share=1.0), 4000)
    rounded = torch.ones(1)
    for step in range(1, 4001):
        with torch.no_grad():
            model.weight.fill_(1.0 if step <= 2000 else 1.0 + 2**-10)
        average.update(model)
        rounded += (model.weight.detach()[0] - rounded) / torch.tensor(float(step), dtype=torch.float32)
    exact = 1 + 2**-11
    assert abs(float(average.state_dict()["mean"]["weight"]) - exact) < 1e-12
    assert abs(float(rounded) - exact) > 1e-8  # the control


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "median"}, "kind='median': choose one of exponential, tail"),
        ({"kind": "exponential", "decay": 1.0}, r"decay=1.0: give a number of at least 0 and below 1"),
        ({"kind": "exponential", "decay": float("nan")}, "decay=nan"),
        ({"kind": "exponential", "share": 0.5}, "share=0.5: averaging by 'exponential' has a decay"),
        ({"kind": "tail", "share": 0.0}, "share=0.0: give a number greater than 0"),
        ({"kind": "tail", "decay": 0.5}, "decay=0.5: averaging by 'tail' has a share"),
    ],
)
def test_bad_averagings_are_refused(arguments, words):
    with pytest.raises(InvalidArgumentError, match=words):
        Averaging(**arguments)


# In runs.


def started(averaging, plan=tiny.PLAN, source=None):
    trainer, model, optimizer = tiny.parts(plan, momentum=0.5)
    average = RunningAverage(averaging, plan.steps)
    return trainer, model, optimizer, {"average": average}


def result_of(state: TrainingState) -> tuple[str, str]:
    with state.result() as model:
        return model_digest(model), tiny.bits(model).hex()


@pytest.mark.parametrize("secure", [False, True], ids=["seeded", "secure"])
@pytest.mark.parametrize("averaging", BOTH, ids=KINDS)
def test_an_interrupted_run_is_resumed_to_the_same_bits(tmp_path, averaging, secure):
    """From a checkpoint inside the tail; the negative control goes on with a fresh average."""
    run = tiny.new_run(tmp_path)
    with run.lock() as locked:
        trainer, model, optimizer, also = started(averaging)
        source = SecureSource() if secure else SeededSource(3)
        state = begin(locked, trainer, model, optimizer, source, also=also)
        train_durably(locked, trainer, state, every=8, steps=8)
        fit(trainer, state)  # in the ledger, and in no checkpoint
    whole, last = result_of(state), tiny.bits(state.model)
    state.ledger.close()
    finals = []
    for keep in (True, False):
        with run.lock() as locked:
            trainer, model, optimizer, also = started(averaging)
            again = resume(locked, trainer, model, optimizer, also=also).state
            assert again.step == 8
            if not keep:
                again.average.load_state_dict(RunningAverage(averaging, tiny.STEPS).state_dict())
            fit(trainer, again)
            finals.append(result_of(again))
            assert tiny.bits(again.model) == last
            again.ledger.close()
    assert finals[0] == whole
    assert finals[1] != whole
    assert whole[1] != last.hex()


def test_a_rollback_brings_the_average_back_with_the_checkpoint(tmp_path):
    """What is given up must leave no trace in the average: its steps are no longer accounted for."""
    run, averaging = tiny.new_run(tmp_path), Averaging("exponential", decay=0.9)
    with run.lock() as locked:
        trainer, model, optimizer, also = started(averaging)
        state = begin(locked, trainer, model, optimizer, SeededSource(1), also=also)
        train_durably(locked, trainer, state, every=3, steps=3)
        at_three = state.average.state_dict()
        train_durably(locked, trainer, state, every=3, steps=4)
        assert not torch.equal(state.average.state_dict()["mean"]["0.weight"], at_three["mean"]["0.weight"])
        state.ledger.close()
    spent = run.read_ledger().spent(until=3)[0]
    change = Changes(budgets={"strict": Budget(epsilon=float(spent) * 1.001, delta=1e-5)})
    proposal = propose(run, change, verify=False)
    assert (proposal.action, proposal.step) == ("roll back", 3)
    with run.lock() as locked:
        carry_out(locked, proposal)
        trainer, model, optimizer, also = started(averaging, run.plan())
        again = resume(locked, trainer, model, optimizer, also=also).state
        again.ledger.close()
    found = again.average.state_dict()
    assert (again.step, found["seen"], found["count"]) == (3, 3, 3)
    assert all(torch.equal(found["mean"][name], value) for name, value in at_three["mean"].items())


def test_a_new_plan_moves_the_tail():
    """Of 10 steps the last 4 are averaged; after step 8 the plan has 20 steps, and then 9."""
    averaging = Averaging("tail", share=0.4)
    model = nn.Linear(1, 1, bias=False)

    def after(average: RunningAverage, iterates) -> float:
        for value in iterates:
            with torch.no_grad():
                model.weight.fill_(float(value))
            average.update(model)
        with average.in_place_of(model) as averaged:
            return float(averaged.weight.detach())

    first = RunningAverage(averaging, 10)
    assert after(first, range(1, 9)) == 7.5  # of 7 and 8
    longer, shorter = RunningAverage(averaging, 20), RunningAverage(averaging, 9)
    for average in (longer, shorter):
        average.load_state_dict(first.state_dict())
    assert after(longer, [9]) == 9  # before its tail: the last iterate
    assert after(longer, range(10, 21)) == pytest.approx(np.mean(range(13, 21)))
    assert after(shorter, [9]) == 8  # of 7, 8 and 9; what was not taken in does not come back


def test_another_averaging_is_not_resumed(tmp_path):
    run = tiny.new_run(tmp_path)
    with run.lock() as locked:
        trainer, model, optimizer, also = started(BOTH[0])
        begin(locked, trainer, model, optimizer, SeededSource(1), also=also).ledger.close()
        trainer, model, optimizer, also = started(BOTH[1])
        with pytest.raises(CheckpointError, match="averaging: the run was begun with"):
            resume(locked, trainer, model, optimizer, also=also)
        with pytest.raises(CheckpointError, match="also key 'average' is in the checkpoint and not here"):
            resume(locked, trainer, model, optimizer)


# In studies.

AVERAGED = ("learning_rate = 2.0", 'learning_rate = 2.0\naveraging = "tail"\naveraging_share = 0.5\nseed = 1')


def test_a_study_saves_publishes_and_judges_the_average(tmp_path):
    study = written_study(tmp_path, AVERAGED, ("steps = 12", "steps = 4"))
    prepared = prepare(study)
    run = create_run(tmp_path / "run", prepared)
    with run.lock() as locked:
        state = begin_training(locked, prepared)
        outcome = finish(locked, prepared, state, every=2)
        saved = load_file(outcome.model / "model.safetensors")
        with state.result() as model:
            assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())
        assert not torch.equal(saved["0.weight"], state.model.state_dict()["0.weight"])
        again = prepare_again(run, study)
        last = run.last_checkpoint()
        elsewhere = save_checkpoint(run, again, last, tmp_path / "published")
        copy = load_file(tmp_path / "published" / "model.safetensors")
        assert all(torch.equal(copy[name], value) for name, value in saved.items())
        resumed = resume_training(locked, prepare_again(run, study)).state
        assert result_of(resumed) == result_of(state)
        resumed.ledger.close()
    assert outcome.evaluation.last_iterate is not None
    assert elsewhere.evaluation == outcome.evaluation
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["last_iterate"]["step"] for line in lines] == [2, 4]
    assert lines[0]["loss"] == lines[0]["last_iterate"]["loss"]  # before the tail
    assert lines[1]["loss"] != lines[1]["last_iterate"]["loss"]
    card = (outcome.model / "model-card.md").read_text()
    assert "average of iterates (tail, share 0.5)" in card
    assert "The last iterate: " in card


def test_comparisons_and_trials_judge_the_average_and_survive_json(tmp_path):
    study = written_study(tmp_path, ("steps = 12", "steps = 3")).changed({"averaging": "exponential"})
    assert study.config.averaging == Averaging("exponential", 0.9)
    entrant = Entrant("any", study.config.method)
    result = train_once(study, entered_data(study, entrant, 1), entrant, 1)
    assert result.final.last_iterate.loss != result.final.loss
    plain = train_once(study.changed({"averaging": "none"}), entered_data(study, entrant, 1), entrant, 1)
    norms = plain.final.measures[NORMS]  # measured once, of the last iterate
    last = result.final.last_iterate
    assert result.final.measures[NORMS] == norms
    assert plain.final == dataclasses.replace(last, measures={**last.measures, NORMS: norms})
    assert Result.from_json(json.loads(json.dumps(result.to_json()))).curve == result.curve
    plan = prepare(study).trainer.plan
    trial = run_trial(TrialTask(study, Candidate({}, study.config), plan, 0))
    other = run_trial(TrialTask(study, Candidate({}, study.changed({"averaging": "none"}).config), plan, 0))
    assert trial.evaluation.last_iterate == other.evaluation
    assert not torch.equal(trial.weights["0.weight"], other.weights["0.weight"])


def test_changes_of_a_study_name_its_keys(tmp_path):
    study = written_study(tmp_path).changed({"averaging": "tail", "averaging_share": 0.2})
    assert study.config.averaging == Averaging("tail", share=0.2)
    assert study.config.to_json()["averaging"] == {"kind": "tail", "decay": None, "share": 0.2}
    with pytest.raises(InvalidArgumentError, match=r"averaging_decay=0.5: nothing is averaged"):
        written_study(tmp_path).changed({"averaging_decay": 0.5})
