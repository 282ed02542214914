"""Many processes train as one: the same parameters, one ledger, one noise, and nobody is left waiting."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import signal
import time
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from inosgd import (
    DP_SGD,
    IDP_SGD,
    INO_SGD,
    Budget,
    InosgdError,
    Ledger,
    Owners,
    Plan,
    SecureSource,
    SeededSource,
    Trainer,
    TrainingState,
    fit,
    supervised,
    train_step,
    training,
)
from inosgd import distributed as module
from inosgd.adjustment import Adjustment
from inosgd.averaging import Averaging, RunningAverage
from inosgd.class_shares import ClassShares
from inosgd.clipping import AutoClipping
from inosgd.counting import Labels, count_classes
from inosgd.distributed import ALONE, Peers, SharedBatch, connect
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine
from inosgd.gradients.engine import Measured
from inosgd.grid import Grid
from inosgd.ledger.records import read_chain
from inosgd.order import ORDERS
from inosgd.plan import Phase, Terms
from inosgd.randomness import AgreedSource
from inosgd.runs.folder import RunFolder
from inosgd.runs.resuming import begin, resume, train_durably
from inosgd.runs.verification import verify_run
from inosgd.units import Units
from tests.processes import Crew, Raised, crew_of

COUNT, STEPS = 60, 4
LOSSES = supervised(F.cross_entropy)
METHODS = {"dp-sgd": DP_SGD, "idp-sgd": IDP_SGD, "ino-sgd": INO_SGD}


@dataclasses.dataclass(frozen=True)
class Case:
    """A small training, the same in every process."""

    method: str = "ino-sgd"
    order: str = "descending-loss"
    rates: tuple[float, float] = (0.3, 0.5)
    noise: float = 2.0
    dtype: torch.dtype = torch.float64
    engine: str = "bookkeeping"
    only: str = "all"
    auto: bool = False
    epsilon: float = 1e9
    dropout: float = 0.0
    seed: int | None = 5
    shares: str | None = None
    rows: int | None = None

    def trainer(self, peers: Peers) -> Trainer:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(COUNT, 6, generator=generator, dtype=torch.float64).to(self.dtype)
        targets = (inputs[:, 0] > 0).long()
        names = ["a"] * 20 + ["b"] * 40
        if self.only == "even":  # every example belongs to process 0 or 2
            names = ["b" if index % 2 else "a" for index in range(COUNT)]
        owners = Owners.from_labels(names, {name: Budget(epsilon=self.epsilon, delta=1e-5) for name in "ab"})
        units = None
        if self.rows is not None:  # units of one to five rows, of which so many are drawn
            units = Units.of(np.arange(COUNT) ** 2 % 20 + 20 * (np.arange(COUNT) >= 20), max_rows=self.rows)
            owners = units.owned_by(owners)
        terms = Terms.for_owners(owners.table, np.array(self.rates), np.array([0.2, 0.5]), self.noise)
        spent = np.full(2, self.epsilon if self.noise else 0.0)
        count = Terms(np.ones(2), np.full(2, 0.2), 1.0, float(COUNT)) if self.shares == "counted" else None
        plan = Plan(owners.table, (Phase(STEPS, terms),), "rdp", spent, count=count)
        method = dataclasses.replace(METHODS[self.method], order=ORDERS[self.order])
        if self.auto:
            method = dataclasses.replace(method, clipping=AutoClipping())
        engine = ReferenceEngine() if self.engine == "reference" else BookkeepingEngine()
        if self.shares is None:
            return Trainer(plan, owners, (inputs, targets), LOSSES, method, engine, peers, units=units)
        method = dataclasses.replace(method, adjustment=Adjustment(1.5))
        declared = ClassShares.declared({"a": {"x": 0.2, "y": 0.8}, "b": {"x": 0.7, "y": 0.3}}, "xy")
        shares, labels = (declared, None) if count is None else (None, Labels(("x", "y"), targets.numpy()))
        return Trainer(plan, owners, (inputs, targets), LOSSES, method, engine, peers, shares, labels)

    def state(self, trainer: Trainer, ledger: Ledger | None = None) -> TrainingState:
        network = model(self.dtype, self.dropout)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.5)
        return TrainingState.start(trainer, network, optimizer, trainer.peers.source(self.seed), ledger)


def model(dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)
    if dropout:
        network.insert(1, nn.Dropout(dropout))
    return network


def flat(state: TrainingState) -> torch.Tensor:
    return nn.utils.parameters_to_vector(state.model.parameters()).detach().clone()


@pytest.fixture(scope="module")
def crew():
    with crew_of(4) as four:
        four.run(pairs_made)
        yield four


PAIR: list[Peers] = []


def pairs_made(peers: Peers) -> None:
    """A group of the first two, for cases on two processes."""
    group = dist.new_group([0, 1])
    if peers.rank < 2:
        PAIR.append(Peers(peers.rank, 2, group))


def among(peers: Peers, size: int) -> Peers | None:
    """The first ``size`` of the processes; None in the others."""
    if size == peers.size:
        return peers
    return PAIR[0] if peers.rank < size else None


def trained(peers: Peers | None, case: Case) -> tuple[np.ndarray, int, np.ndarray, list[int]]:
    """Parameters, recorded steps, what was spent, and the sizes of the batches."""
    trainer = case.trainer(peers)
    state, sizes = case.state(trainer), []
    fit(trainer, state, callbacks=[lambda _, step: sizes.append(step.batch_size)])
    return flat(state).numpy(), state.ledger.steps, state.ledger.spent(), sizes


def trained_by(peers: Peers, size: int, cases: list[Case]) -> list | None:
    few = among(peers, size)
    return None if few is None else [trained(few, case) for case in cases]


def answers(crew: Crew, function, *arguments) -> list:
    """What the processes returned; whatever one raised fails the test."""
    given = crew.run(function, *arguments)
    assert not [each for each in given if isinstance(each, Raised)], given
    return [each for each in given if each is not None]


EVERY_ORDER = [
    Case(method, order, dtype=dtype)
    for method in METHODS
    for order in ORDERS
    for dtype in (torch.float64, torch.float32)
]
EACH_ORDER = [
    *(Case(method, dtype=dtype) for method in METHODS for dtype in (torch.float64, torch.float32)),
    *(Case(order=order) for order in ORDERS),
]
"""Every method, every type and every order: with importance, which is what an order is for."""
SPECIAL = {
    "adjusted": Case(shares="declared"),
    "counted": Case(shares="counted"),
    "often empty": Case(rates=(0.005, 0.01)),
    "always empty": Case(rates=(1e-12, 1e-12)),
    "whole data": Case(rates=(1.0, 1.0)),
    "shards of 0 and 30": Case(rates=(1.0, 0.0), only="even"),
    "normalised": Case(auto=True),
    "reference engine": Case(engine="reference", dtype=torch.float32),
    "no noise": Case(noise=0.0, epsilon=np.inf),
    "units of several rows": Case(rows=3),
}


@functools.cache
def alone(case: Case) -> tuple[np.ndarray, int, np.ndarray, list[int]]:
    """The same training in one process."""
    return trained(ALONE, case)


def tolerance(case: Case) -> float:
    """In float32: rounding, and the share of the sum that is left for it, which grows with the processes."""
    return 1e-12 if case.dtype == torch.float64 else 2e-5


@pytest.mark.parametrize("cases", [EACH_ORDER, pytest.param(EVERY_ORDER, marks=pytest.mark.long)], ids=["each", "all"])
@pytest.mark.parametrize("size", [2, 4])
def test_many_processes_train_as_one_with_every_method_and_order(crew, size, cases):
    several = answers(crew, trained_by, size, cases)
    assert len(several) == size
    for index, case in enumerate(cases):
        expected, steps, spent, sizes = alone(case)
        for mine in several:
            np.testing.assert_allclose(mine[index][0], expected, rtol=0, atol=tolerance(case), err_msg=str(case))
            np.testing.assert_array_equal(mine[index][0], several[0][index][0])  # the same bits in every process
            assert mine[index][1] == steps == STEPS
            np.testing.assert_array_equal(mine[index][2], spent)
            assert mine[index][3] == sizes


@pytest.mark.parametrize("size", [2, 4])
def test_empty_batches_unequal_shards_and_other_engines(crew, size):
    several = answers(crew, trained_by, size, list(SPECIAL.values()))
    for index, (name, case) in enumerate(SPECIAL.items()):
        expected = alone(case)[0]
        for mine in several:
            np.testing.assert_allclose(mine[index][0], expected, rtol=0, atol=tolerance(case), err_msg=name)
    assert alone(SPECIAL["always empty"])[3] == [0] * STEPS
    assert 0 in alone(SPECIAL["often empty"])[3]


def counted_before(peers: Peers) -> tuple[list, list]:
    """The first process was killed after its count, and begins again with its ledger; the others know nothing."""
    case = Case(shares="counted", seed=None)
    trainer, ledger = case.trainer(peers), None
    if peers.first:
        ledger = Ledger.for_plan(trainer.plan)
        count_classes(ledger, trainer.plan, trainer.owners, trainer.labels, SecureSource())
    state = case.state(trainer, ledger)
    return state.shares.shares.tolist(), state.ledger.history.counts.tolist()


def test_classes_are_counted_once_for_all_processes(crew):
    first, *others = answers(crew, counted_before)
    assert all(other == first for other in others)


def slow(peers: Peers, case: Case) -> np.ndarray:
    """Process 1 takes its time in every step, and process 2 before it begins."""
    time.sleep(0.2 * (peers.rank == 2))
    trainer = case.trainer(peers)
    plain = trainer.losses
    delay = 0.03 * (peers.rank == 1)
    patient = dataclasses.replace(trainer, losses=lambda *given: time.sleep(delay) or plain(*given))
    state = case.state(patient)
    fit(patient, state)
    return flat(state).numpy()


def test_processes_need_not_be_equally_fast(crew):
    for each in answers(crew, slow, Case()):
        np.testing.assert_allclose(each, alone(Case())[0], rtol=0, atol=1e-12)


def broken(peers: Peers, case: Case, how: str) -> np.ndarray:
    """A training with a plausible mistake in it."""
    with pytest.MonkeyPatch.context() as patch:
        if how == "noise in every part":

            def noisy(self, part, drew, plain=SharedBatch.summing):
                return plain(self, part + 2.0 * torch.randn_like(part), drew)

            patch.setattr(SharedBatch, "summing", noisy)
        if how == "order within the share":

            def local(self, measured, plain=SharedBatch.gather):
                everyone = plain(self, measured)
                shifted = everyone.losses.copy()
                shifted[self.mine] += 1000.0  # before all others, as if it knew only its own
                return Measured(shifted, everyone.grad_norms)

            patch.setattr(SharedBatch, "gather", local)
        if how == "parts not added":
            patch.setattr(Peers, "added", lambda self, value: value)
        return trained(peers, case)[0]


@pytest.mark.parametrize("how", ["nothing", "noise in every part", "order within the share", "parts not added"])
def test_mistakes_would_be_seen(crew, how):
    """The negative control of the equality above."""
    expected = alone(Case())[0]
    found = answers(crew, broken, Case(), how)[0]
    assert np.allclose(found, expected, rtol=0, atol=1e-12) == (how == "nothing")


# What travels.


def counted(peers: Peers, cases: list[Case]) -> list[list[tuple[int, int]]]:
    """For every step the size of its batch and the bytes that this process handed to torch.distributed."""
    handed = []

    def count(name: str, position: int):
        plain = getattr(dist, name)

        def counting(*arguments, **options):
            handed.append(arguments[position].nbytes)
            return plain(*arguments, **options)

        patch.setattr(dist, name, counting)

    found = []
    with pytest.MonkeyPatch.context() as patch:
        for name, position in (("all_gather", 1), ("all_reduce", 0), ("broadcast", 0)):
            count(name, position)
        for case in cases:
            trainer = case.trainer(peers)
            state, steps = case.state(trainer), []
            for _ in range(STEPS):
                handed.clear()
                steps.append((train_step(trainer, state).batch_size, sum(handed)))
            found.append(steps)
    return found


def test_a_step_sends_the_gradient_once_and_at_most_24_bytes_per_example(crew):
    cases = [Case(), Case(dtype=torch.float32), Case(rates=(1.0, 1.0)), *SPECIAL.values()]
    cases = [case for case in cases if case.engine == "bookkeeping"]
    parameters = flat(Case().state(Case().trainer(ALONE))).numel()
    for steps_by_case in answers(crew, counted, cases):
        for case, steps in zip(cases, steps_by_case, strict=True):
            gradient = 8 * parameters  # sums are float64, whatever the model is
            for batch_size, handed in steps:
                assert 0 < handed <= gradient + 24 * batch_size, case
                assert batch_size == 0 or handed >= gradient


# Randomness.


def drawn(peers: Peers) -> tuple[list[int], list[int], str]:
    source = peers.source()
    return source.stream("noise").words(4).tolist(), source.stream("order").words(4).tolist(), source.description


def test_the_key_is_the_same_in_all_processes_new_each_time_and_of_no_single_process(crew):
    first, second = answers(crew, drawn), answers(crew, drawn)
    assert len({str(each) for each in first}) == len({str(each) for each in second}) == 1
    assert first[0][0] != second[0][0]
    assert first[0][0] != first[0][1]
    assert "secure" in first[0][2]


def with_fixed_contribution(peers: Peers, cheats: bool) -> list[int]:
    """Process 1 always contributes zeros, or, if it cheats, other bytes than it committed itself to."""
    with pytest.MonkeyPatch.context() as patch:
        if peers.rank == 1:
            patch.setattr(os, "urandom", lambda count: bytes(count))
        if peers.rank == 1 and cheats:
            patch.setattr(module, "_commitment", lambda rank, contribution: bytes(32))
        return peers.source().stream("noise").words(4).tolist()


def test_a_process_that_waits_for_the_others_cannot_choose_the_key(crew):
    honest = [answers(crew, with_fixed_contribution, False)[0] for _ in range(2)]
    assert honest[0] != honest[1]  # the others' contributions make it new
    found = crew.run(with_fixed_contribution, True)
    assert all("process 1 sent other randomness" in each.message for each in (found[0], found[2], found[3]))


def test_an_agreed_source_derives_streams_and_forgets_keys():
    source = AgreedSource(bytes(range(32)))
    assert source.stream("a").words(3).tolist() == AgreedSource(bytes(range(32))).stream("a").words(3).tolist()
    stream = source.stream("a")
    before = stream.state()["key"]
    stream.words(1)
    assert stream.state()["key"] != before
    with pytest.raises(InvalidArgumentError, match="it has 3 bytes; give 32"):
        AgreedSource(b"abc")


def secure_training(peers: Peers) -> np.ndarray:
    return trained(peers, Case(seed=None))[0]


def test_secure_trainings_agree_within_themselves_only(crew):
    first, second = answers(crew, secure_training), answers(crew, secure_training)
    assert all(np.array_equal(each, first[0]) for each in first)
    assert not np.array_equal(first[0], second[0])


# Refusals: what must be the same everywhere.


def different(peers: Peers, what: str) -> None:
    case = Case()
    if peers.rank == 2 and what == "plan":
        case = Case(noise=2.5)
    trainer = case.trainer(peers)
    if peers.rank == 2 and what == "learning_rate_unit":
        trainer = dataclasses.replace(trainer, learning_rate_unit="noise")
    network = model()
    if peers.rank == 2 and what == "parameters":
        with torch.no_grad():
            network[0].bias[0] += 1e-9
    optimizer = torch.optim.SGD(network.parameters(), lr=0.6 if peers.rank == 2 and what == "optimizer" else 0.5)
    source = SecureSource() if what == "streams" else SeededSource(1)
    also = {"average": RunningAverage(Averaging("tail"), STEPS)} if peers.rank == 2 and what == "averaging" else {}
    state = TrainingState.start(trainer, network, optimizer, source, also=also)
    if what == "batches" and peers.rank == 2:
        state.streams.sampling.words(1)
    train_step(trainer, state)


@pytest.mark.parametrize(
    "what", ["plan", "parameters", "optimizer", "learning_rate_unit", "averaging", "streams", "batches"]
)
def test_processes_that_would_do_different_things_are_refused(crew, what):
    for each in crew.run(different, what):
        assert each.kind == "InvalidArgumentError", each
        assert ("drew different batches" if what == "batches" else f"{what}: process") in each.message


def different_seeds(peers: Peers) -> None:
    peers.source(peers.rank)


def test_seeds_must_agree(crew):
    assert all(each.message.startswith("seed: process 1") for each in crew.run(different_seeds))


# Failures.


def failing(peers: Peers, where: str, rates: tuple[float, float] = (0.3, 0.5)) -> dict[str, object]:
    """One process fails in the second step; afterwards all try again without the fault."""
    trainer = Case(rates=rates).trainer(peers)
    state = Case(rates=rates).state(trainer)
    train_step(trainer, state)
    before, streams = flat(state), state.streams.fingerprint()
    with pytest.MonkeyPatch.context() as patch:
        if peers.rank == 1 and where == "measure":
            patch.setattr(type(trainer.store), "take", raise_it)
        if peers.rank == 1 and where == "sum":
            patch.setattr(training, "BoundedSum", raise_it)
        if peers.rank == 0 and where == "ledger":
            patch.setattr(Ledger, "record", raise_it)
        try:
            train_step(trainer, state)
            raised = None
        except Exception as error:
            raised = (type(error).__name__, str(error))
    untouched = torch.equal(flat(state), before) and state.streams.fingerprint() == streams and state.ledger.steps == 1
    fit(trainer, state)
    return {"raised": raised, "untouched": untouched, "after": flat(state).numpy(), "steps": state.ledger.steps}


def raise_it(*_, **__):
    raise MemoryError("too large for this machine")


@pytest.mark.parametrize("rates", [(0.3, 0.5), (1e-12, 1e-12)])
@pytest.mark.parametrize("where", ["measure", "sum", "ledger"])
def test_a_failure_of_one_is_a_failure_of_all_and_can_be_tried_again(crew, where, rates):
    culprit = 0 if where == "ledger" else 1
    found = answers(crew, failing, where, rates)
    expected = alone(Case(rates=rates))[0]
    for rank, each in enumerate(found):
        assert each["raised"][0] == ("MemoryError" if rank == culprit else "PeerFailedError")
        assert "too large for this machine" in each["raised"][1]
        assert rank == culprit or f"process {culprit} of 4 failed" in each["raised"][1]
        assert each["untouched"]
        assert each["steps"] == STEPS
        np.testing.assert_allclose(each["after"], expected, rtol=0, atol=1e-12)


def releasing(peers: Peers, folder: Path, how: str) -> list[bool]:
    """Whether the first process had recorded the step, which takes it a while, when this process released it."""
    trainer = Case().trainer(peers)
    state = Case().state(trainer)
    recorded, seen = folder / "recorded", []

    def slowly(self, *given, plain=Ledger.record, **named):
        time.sleep(0.5)
        plain(self, *given, **named)
        recorded.touch()

    def looking(*given, plain=training.release):
        seen.append(recorded.exists())
        return plain(*given)

    @contextmanager
    def hasty(self, part, drew):
        self._peers.check_all_ready()
        self._part = part
        self.total = self._added(part)
        yield self._streams

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "release", looking)
        if peers.first:
            patch.setattr(Ledger, "record", slowly)
        if how == "sum first":
            patch.setattr(SharedBatch, "summing", hasty)
        train_step(trainer, state)
    return seen


def test_no_process_releases_before_the_first_has_recorded(crew, tmp_path):
    (tmp_path / "wrong").mkdir()
    assert answers(crew, releasing, tmp_path, "record first") == 4 * [[True]]
    assert answers(crew, releasing, tmp_path / "wrong", "sum first") == [[True], [False], [False], [False]]


def failing_after_the_sum(peers: Peers) -> tuple[str, int]:
    """The first process fails when all have the sum: it has nothing to say any more, and the others lose it."""
    trainer = Case().trainer(peers)
    state = Case().state(trainer)
    with pytest.MonkeyPatch.context() as patch:
        if peers.first:
            patch.setattr(training, "replace", raise_it)
        try:
            fit(trainer, state)
        except MemoryError:
            os._exit(1)
        except InosgdError as error:
            return type(error).__name__, state.step
    return "nothing", state.step


def test_a_failure_after_the_sum_leaves_nobody_waiting():
    with crew_of(2) as two:
        assert two.run(failing_after_the_sum) == [None, ("PeerLostError", 1)]


def refused(peers: Peers) -> tuple[str, str, bool, int]:
    case = Case(epsilon=0.01)
    trainer = case.trainer(peers)
    state = case.state(trainer)
    before = flat(state)
    with pytest.raises(InosgdError) as error:
        fit(trainer, state)
    return type(error.value).__name__, str(error.value), torch.equal(flat(state), before), state.ledger.steps


def test_a_step_that_the_ledger_refuses_is_released_by_nobody(crew):
    found = answers(crew, refused)
    assert [each[0] for each in found] == ["BudgetExceededError"] + 3 * ["PeerFailedError"]
    assert all("step 0 is refused: owner 'a'" in each[1] for each in found)
    assert all(each[2] and each[3] == 0 for each in found)


def not_finite(peers: Peers) -> str:
    """A model that gives NaN for one example in one process: it counts as zero, and everybody goes on."""
    trainer = Case(rates=(1.0, 1.0)).trainer(peers)
    inputs, targets = (tensor.clone() for tensor in trainer.store.take(np.arange(COUNT)))
    inputs[7] = torch.nan
    trainer = dataclasses.replace(trainer, examples=(inputs, targets))
    state = Case().state(trainer)
    found = train_step(trainer, state)
    return found.not_finite, flat(state).numpy()


def test_a_gradient_that_is_not_finite_counts_as_zero_everywhere(crew):
    count, expected = not_finite(ALONE)
    for each in answers(crew, not_finite):
        assert each[0] == count == 1
        np.testing.assert_allclose(each[1], expected, rtol=0, atol=1e-12)


# Losses of processes.


def killed(peers: Peers, where: str) -> tuple[str, str, bool, int, int]:
    """The last process dies in the middle of the second step."""
    trainer = Case().trainer(peers)
    state = Case().state(trainer)
    train_step(trainer, state)
    before = flat(state)
    with pytest.MonkeyPatch.context() as patch:
        if peers.rank == peers.size - 1:
            owner, name = {"measuring": (BookkeepingEngine, "on"), "summing": (Peers, "added")}[where]
            patch.setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(InosgdError) as error:
            train_step(trainer, state)
    same = torch.equal(flat(state), before)
    return type(error.value).__name__, str(error.value), same, state.step, state.ledger.steps


@pytest.mark.parametrize("where", ["measuring", "summing"])
def test_a_killed_process_ends_the_step_with_nothing_released(where):
    with crew_of(3) as three:
        *found, dead = three.run(killed, where)
    assert dead is None
    for rank, (kind, message, untouched, step, recorded) in enumerate(found):
        assert kind == "PeerLostError"
        assert "inosgd resume" in message
        assert re.search(r"lost another one \([^()]*(closed|reset)[^()]*\)", message)
        assert untouched
        assert step == 1
        assert recorded == (2 if where == "summing" and rank == 0 else 1)  # never released without a record


# Runs that go on.


class StoppedError(Exception):
    """What ends a run in the middle, in every process at once."""


def stop_after(step: int):
    def callback(state: TrainingState, _) -> None:
        if state.step == step:
            raise StoppedError

    return callback


def begun(peers: Peers, size: int, folder: Path, case: Case) -> None:
    """A run with checkpoints after 0 and 2 steps that ends after 3, which are recorded."""
    few = among(peers, size)
    if few is None:
        return
    trainer = case.trainer(few)
    network = model(case.dtype, case.dropout)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.5)
    with ExitStack() as held, pytest.raises(StoppedError):
        run = None
        if few.first:
            run = held.enter_context(RunFolder.create(folder, {}, trainer.plan).lock())
        state = begin(run, trainer, network, optimizer, few.source(case.seed), also=averaging())
        train_durably(run, trainer, state, every=2, callbacks=[stop_after(3)])


def averaging() -> dict[str, RunningAverage]:
    return {"average": RunningAverage(Averaging("exponential"), STEPS)}


def continued(
    peers: Peers, size: int, folder: Path, case: Case
) -> tuple[np.ndarray, int, np.ndarray, np.ndarray] | None:
    few = among(peers, size)
    if few is None:
        return None
    trainer = case.trainer(few)
    network = model(case.dtype, case.dropout)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.5)
    run = RunFolder.open(folder)
    with run.lock() if few.first else nullcontext(run) as locked:
        state = resume(locked, trainer, network, optimizer, few.source(case.seed), also=averaging()).state
        try:
            train_durably(locked, trainer, state, every=2)
        finally:
            state.ledger.close()
    with state.result():
        averaged = flat(state).numpy()
    return flat(state).numpy(), state.ledger.steps, state.ledger.spent(), averaged


@pytest.mark.parametrize("seed", [5, None])
def test_a_run_goes_on_on_another_number_of_processes_to_the_same_bits(crew, tmp_path, seed):
    case = Case(seed=seed)
    answers(crew, begun, 4, tmp_path / "run", case)
    assert RunFolder.open(tmp_path / "run").read_ledger().steps == 3
    for name in ("alone", "two", "four"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
    ends = {"alone": [continued(ALONE, 1, tmp_path / "alone", case)]}
    ends["two"] = answers(crew, continued, 2, tmp_path / "two", case)
    ends["four"] = answers(crew, continued, 4, tmp_path / "four", case)
    expected = ends["alone"][0]
    if seed is not None:
        np.testing.assert_array_equal(expected[0], alone(case)[0])
    for name, found in ends.items():
        assert len(found) == {"alone": 1, "two": 2, "four": 4}[name]
        for parameters, steps, spent, averaged in found:
            np.testing.assert_array_equal(parameters, expected[0])
            np.testing.assert_array_equal(averaged, expected[3])
            assert not np.array_equal(averaged, parameters)
            assert steps == STEPS
            np.testing.assert_array_equal(spent, expected[2])
        run = RunFolder.open(tmp_path / name)
        assert verify_run(run).good
        kinds = [body["kind"] for body in read_chain(run.ledger_path).bodies]
        assert kinds.count("step") == STEPS  # the third was recorded once and computed twice
        assert not any(stream.get("key") for each in run.checkpoints() for stream in each.streams.values())


def test_recorded_steps_with_dropout_are_computed_again_on_as_many_processes_only(crew, tmp_path):
    case = Case(dropout=0.5)
    answers(crew, begun, 4, tmp_path / "run", case)
    shutil.copytree(tmp_path / "run", tmp_path / "fewer")
    found = answers(crew, continued, 4, tmp_path / "run", case)
    expected = answers(crew, trained, case)
    for again, whole in zip(found, expected, strict=True):
        np.testing.assert_array_equal(again[0], whole[0])
    first, second, *_ = crew.run(continued, 2, tmp_path / "fewer", case)
    assert (first.kind, second.kind) == ("InvalidArgumentError", "PeerFailedError")
    assert "if the model has dropout, on as many processes" in first.message
    with pytest.raises(InvalidArgumentError, match="would cost twice"):
        continued(ALONE, 1, tmp_path / "fewer", case)


def masks(peers: Peers) -> list[float]:
    trainer = Case(dropout=0.5).trainer(peers)
    state = Case(dropout=0.5).state(trainer)
    with training.torch_seeded_by(state.streams.masks, peers.rank) as drew:
        before = drew()
        return [before, torch.rand(3).tolist(), drew()]


def test_each_process_has_masks_of_its_own(crew):
    found = answers(crew, masks)
    assert all((before, after) == (False, True) for before, _, after in found)
    assert len({str(drawn) for _, drawn, _ in found}) == 4


def test_after_a_rollback_all_processes_go_on_with_one_new_key(crew, tmp_path):
    case = Case(seed=None)
    answers(crew, begun, 4, tmp_path / "run", case)
    run = RunFolder.open(tmp_path / "run")
    with run.lock() as locked:
        locked.roll_back(2)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    first = answers(crew, continued, 4, tmp_path / "run", case)
    second = answers(crew, continued, 4, tmp_path / "again", case)
    for found in (first, second):
        assert all(np.array_equal(each[0], found[0][0]) for each in found)
    assert not np.array_equal(first[0][0], second[0][0])
    assert verify_run(run).good


def resumed_with_other_streams(peers: Peers, folder: Path) -> None:
    """The state of the checkpoint, but with streams that others would not expect."""
    trainer = Case().trainer(peers)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.5)
    run = RunFolder.open(folder)
    with run.lock() if peers.first else nullcontext(run) as locked:
        state = resume(locked, trainer, network, optimizer, peers.source(5), also=averaging()).state
        try:
            state.streams.noise.words(1)  # in all processes: they agree, and the ledger does not
            train_step(trainer, state)
        finally:
            state.ledger.close()


def test_a_recorded_step_is_not_replayed_with_other_noise(crew, tmp_path):
    answers(crew, begun, 4, tmp_path / "run", Case())
    for rank, each in enumerate(crew.run(resumed_with_other_streams, tmp_path / "run")):
        assert each.kind == ("InvalidArgumentError" if rank == 0 else "PeerFailedError")
        assert "would cost twice" in each.message


def resumed_somewhere(peers: Peers, folder: Path) -> None:
    trainer = Case().trainer(peers)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.5)
    run = RunFolder(folder if peers.rank < 3 else folder / "elsewhere")
    with run.lock() if peers.first else nullcontext(run) as locked:
        resume(locked, trainer, network, optimizer, peers.source(5))


def test_a_process_that_cannot_read_the_run_stops_all(crew, tmp_path):
    answers(crew, begun, 4, tmp_path / "run", Case())
    found = crew.run(resumed_somewhere, tmp_path / "run")
    assert [each.kind for each in found] == 3 * ["PeerFailedError"] + ["InvalidArgumentError"]
    assert all("there is no ledger" in each.message for each in found)


# Alone, and what needs no processes.


def test_without_a_launcher_there_is_one_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with connect() as peers:
        assert peers is ALONE
        assert not dist.is_initialized()
    assert isinstance(ALONE.source(), SecureSource)
    assert isinstance(ALONE.source(3), SeededSource)
    with ALONE.together():
        ALONE.check_same(anything=1)


def test_nobody_comes_to_the_meeting(tmp_path):
    meeting = connect(f"file://{tmp_path}/meeting", rank=0, size=2, timeout=0.5)
    with pytest.raises(InosgdError, match=r"process 0 of 2 did not find the others within 0\.5 s"), meeting:
        pass
    assert not dist.is_initialized()


def test_an_example_belongs_to_the_same_process_whoever_else_is_drawn():
    batches = [np.array([3, 8, 9, 20]), np.array([1, 3, 8, 9, 20, 33]), np.zeros(0, dtype=np.int64)]
    for batch in batches:
        shares = [SharedBatch(Peers(rank, 3), batch) for rank in range(3)]
        assert sorted(np.concatenate([share.mine for share in shares]).tolist()) == list(range(len(batch)))
        for rank, share in enumerate(shares):
            assert (batch[share.mine] % 3 == rank).all()


def test_how_often_the_grid_does_not_absorb_a_rounding():
    """|S - S'|_1 / g coordinates on average, as the module says."""
    generator = torch.Generator().manual_seed(0)
    grid = Grid.for_release(1.0, np.array([1.0]), 400_000)
    value = torch.randn(400_000, generator=generator, dtype=torch.float64)
    other = value + 0.01 * grid.spacing * torch.randn(400_000, generator=generator, dtype=torch.float64)
    expected = float((value - other).abs().sum()) / grid.spacing
    found = int((grid.steps(value) != grid.steps(other)).sum())
    assert abs(found - expected) < 5 * expected**0.5
    assert expected > 1000
