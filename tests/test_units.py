"""Units: one more, with any number of rows, moves the weighted sum of a step by at most its threshold.

The controls are what others do instead; each must break the same bound.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from inosgd import (
    DP_SGD,
    INO_SGD,
    BookkeepingEngine,
    Budget,
    Importance,
    Ledger,
    Method,
    Owners,
    OwnerTable,
    Plan,
    ReferenceEngine,
    SeededSource,
    Trainer,
    TrainingState,
    fit,
    supervised,
)
from inosgd.augmentation import Augmentation
from inosgd.clipping import AutoClipping, FlatClipping
from inosgd.counting import Labels, _histograms
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import units as unit_gradients
from inosgd.gradients.engine import Measured
from inosgd.gradients.units import UnitBatch, UnitLosses, gradients_on
from inosgd.importance import BetaTail, FunctionTail, StepTail, importance_weights
from inosgd.order import ORDERS, Candidates, by_score
from inosgd.owners import plural
from inosgd.plan import Phase, Terms
from inosgd.randomness import mixed_words
from inosgd.units import JOINT, Units, key_of, parts_of, shared_units
from tests.properties import tries

SLACK = 1 + 1e-6
WORD = np.uint64(7)


# Which rows a unit has, and which are drawn --------------------------------------------------------------------------

label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=30)


@given(labels=label_lists, as_text=st.booleans())
@tries(50)
def test_units_hold_the_rows_of_their_labels_in_the_order_of_first_rows(labels, as_text):
    units = Units.of([f"p{each}" for each in labels] if as_text else np.array(labels))
    expected = [[row for row, each in enumerate(labels) if each == label] for label in dict.fromkeys(labels)]
    assert [units.rows_of(np.array([unit])).tolist() for unit in range(len(units))] == expected
    assert units.of_row.tolist() == [list(dict.fromkeys(labels)).index(each) for each in labels]
    assert units.row_count == len(labels)


def test_a_unit_is_one_however_its_name_is_stored():
    assert len(Units.of([1, 1.0, "1", " 1 ", np.int32(1), np.float32(1), 2**70])) == 2
    stored = [np.array([7, 8]), np.array([7, 8], dtype=np.uint8), np.array([7.0, 8.0]), ["7", "8"], [7, 8.0]]
    for labels in stored:
        np.testing.assert_array_equal(Units.of(labels).keys, Units.from_codes(np.array([0, 1]), ["7", "8"]).keys)
        with pytest.raises(InvalidArgumentError, match="known already"):
            Units.of(labels).followed_by(Units.of(["8"]))


@pytest.mark.parametrize("other", ["ann\u00e9", " anne\u0301", "ann\u00e9\u00a0"])
def test_a_unit_is_one_however_its_characters_are_coded(other):
    """Two rows of one person whose name was typed on two machines."""
    units = Units.of(["ann\u00e9", other])
    assert len(units) == 1
    assert units.keys[0] == key_of("ann\u00e9")
    assert len(Units.of(["\ud800", "ann\u00e9"])) == 2  # half a character, which files may hold


def test_units_of_numbers_text_and_codes_are_the_same():
    numbers = np.array([5, 2, 5, 9])
    by_text, by_code = Units.of(["e", "b", "e", "i"]), Units.from_codes(numbers, list("abcdefghij"))
    for units in (Units.of(numbers), by_text, by_code):
        assert units.rows.tolist() == [0, 2, 1, 3]
        assert units.ends.tolist() == [2, 3, 4]


@given(labels=label_lists, most=st.integers(1, 5), word=st.integers(0, 2**64 - 1))
@tries(50)
def test_a_draw_has_distinct_rows_of_the_unit_and_at_most_so_many(labels, most, word):
    units = Units.of(np.array(labels), max_rows=most)
    drawn = units.draw(np.arange(len(units)), np.uint64(word))
    assert drawn.counts.tolist() == np.minimum(units.counts, most).tolist()
    for unit, (start, count) in enumerate(zip(drawn.starts, drawn.counts, strict=True)):
        mine = drawn.rows[start : start + count].tolist()
        assert len(set(mine)) == count
        assert set(mine) <= set(units.rows_of(np.array([unit])).tolist())


@given(labels=label_lists, more=st.integers(1, 9), most=st.none() | st.integers(1, 4), word=st.integers(0, 2**64 - 1))
@tries(50)
def test_one_unit_more_changes_no_draw_of_another(labels, more, most, word):
    """Wherever its rows stand, and whether or not it is drawn."""
    rng = np.random.default_rng(len(labels) + more)
    mixed = list(labels)
    for _ in range(more):
        mixed.insert(int(rng.integers(len(mixed) + 1)), 99)
    kept = [row for row, label in enumerate(mixed) if label != 99]
    without, together = (Units.of(np.array(each), max_rows=most) for each in (labels, mixed))
    place = {int(key): unit for unit, key in enumerate(together.keys)}
    for unit, key in enumerate(without.keys):
        one = without.draw(np.array([unit]), np.uint64(word))
        other = together.draw(np.array([place[key_of("99")], place[int(key)]]), np.uint64(word))
        begin = other.starts[1]
        assert [kept[row] for row in one.rows] == other.rows[begin:].tolist()
        np.testing.assert_array_equal(one.words, other.words[begin:])


def drawn_from_one_stream(units: Units, chosen: np.ndarray, seed: int) -> list[list[int]]:
    """Control: what is usual."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(units.rows_of(np.array([unit])))[: units.max_rows].tolist() for unit in chosen]


def test_the_check_catches_rows_drawn_from_one_shared_stream():
    units = Units.of(np.repeat([1, 2], 20), max_rows=3)
    together, alone = (drawn_from_one_stream(units, np.array(chosen), 0) for chosen in ([0, 1], [1]))
    assert together[-1] != alone[-1]


def test_each_row_of_a_unit_is_as_likely_as_any_other():
    units, words = Units.of(np.zeros(10, dtype=int), max_rows=3), SeededSource(3).words(4000)
    rows = np.concatenate([units.draw(np.array([0]), word).rows for word in words])
    counts = np.bincount(rows, minlength=10)
    expected = 4000 * 3 / 10
    assert ((counts - expected) ** 2 / (expected * 0.7)).sum() < 33.7  # chi-squared, 9 to 10 degrees: below 1e-4
    first_only = np.bincount(np.tile([0, 1, 2], 4000), minlength=10)
    assert ((first_only - expected) ** 2 / (expected * 0.7)).sum() > 33.7


# Owners --------------------------------------------------------------------------------------------------------------


def rows_of_owners() -> Owners:
    budgets = {"a": Budget(epsilon=1.0, delta=1e-5), "b": Budget(epsilon=5.0, delta=1e-7)}
    return Owners.from_labels(["a", "a", "b", "b", "a", "b"], budgets)


def test_a_unit_of_several_owners_has_the_smallest_epsilon_and_the_smallest_delta_among_them():
    units = Units.of(["u", "v", "v", "w", "u", "w"], name="patient")
    owners = units.owned_by(rows_of_owners())
    assert owners.table.names == ("a", "b", "a & b")
    assert owners.table.sizes.tolist() == [1, 1, 1]
    assert owners.table.budget(2) == Budget(epsilon=1.0, delta=1e-7)
    assert owners.of([0, 1, 2]).tolist() == [0, 2, 1]
    assert owners.table.unit == "patient"
    assert shared_units(owners.table) == 1
    assert parts_of("a & b", owners.table.names) == ("a", "b")
    assert OwnerTable.from_json(owners.table.to_json()) == owners.table


def test_units_of_several_owners_are_refused_by_choice_and_names_stay_unambiguous():
    units = Units.of(["u", "v", "v", "w", "u", "w"], name="patient")
    with pytest.raises(InvalidArgumentError, match="rows of 1 of 3 belong to several owners"):
        units.owned_by(rows_of_owners(), "refuse")
    named = Owners.from_labels(["a & b", "c"], {"a & b": 1.0, "c": 1.0}, delta=1e-6)
    for labels in (["u", "u"], ["u", "v"]):  # also where none is shared: budgets are changed by these names
        with pytest.raises(InvalidArgumentError, match="stands between the names of owners"):
            Units.of(labels, name="patient").owned_by(named)


@given(data=st.data(), count=st.integers(1, 25))
@tries(50)
def test_no_row_has_a_unit_with_a_larger_budget_than_its_owner(data, count):
    names = "abcd"
    budgets = {
        name: Budget(epsilon=data.draw(st.floats(0.1, 9)), delta=data.draw(st.floats(1e-9, 1e-3))) for name in names
    }
    rows = Owners.from_labels(data.draw(st.lists(st.sampled_from(names), min_size=count, max_size=count)), budgets)
    units = Units.of(np.array(data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))))
    owners = units.owned_by(rows)
    of_rows = owners.of(units.of_row)
    assert (owners.table.epsilons[of_rows] <= rows.table.epsilons[rows.assignment]).all()
    assert (owners.table.deltas[of_rows] <= rows.table.deltas[rows.assignment]).all()
    assert owners.table.sizes.sum() == len(units)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", None], r"labels\[1\]=None: the unit of a row is missing"),
        (["a", " "], r"labels\[1\]=' '"),
        ([1.0, float("nan")], r"labels\[1\]=nan"),
        ([1.0, 1.5], r"labels\[1\]=1.5: give a whole number, or text"),
        ([1, True], r"labels\[1\]=True: give a whole number, or text"),
        (np.array([b"ann"]), "give a whole number, or text"),
        ([float("inf")], "give a whole number, or text"),
        ([], "there is no row"),
        (np.zeros((2, 2), dtype=int), "give one label per row"),
        (np.ma.masked_array([1, 2], [False, True]), r"labels\[1\]=None: the unit of a row is missing"),
    ],
)
def test_a_label_that_names_no_unit_is_refused(labels, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Units.of(labels)


def test_the_plural_of_a_unit():
    assert [plural(each) for each in ("patient", "family", "day", "example")] == [
        "patients",
        "families",
        "days",
        "examples",
    ]


# The sum of a step ---------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """Outputs whose gradient for a row is the row itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.inner.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs)


def offset_losses(model: nn.Module, examples: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """A row's gradient is its input, and its loss is what it brings along."""
    inputs, constants = examples
    return model(inputs)[:, 0] + constants


MODEL = Scaled(3)
OFFSET_LOSSES = {reduction: UnitLosses(offset_losses, reduction) for reduction in ("mean", "sum")}
"""The same for all cases, so that an engine tries them once."""

SINGLE, SINGLE_LOSSES = Scaled(3).float(), UnitLosses(offset_losses)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Units in a batch: their rows' gradients and losses, and a threshold for each unit."""

    gradients: list[np.ndarray]
    losses: list[np.ndarray]
    thresholds: np.ndarray
    max_rows: int | None
    reduction: str

    def without(self, unit: int) -> Case:
        kept = [each for each in range(len(self.thresholds)) if each != unit]
        return dataclasses.replace(
            self,
            gradients=[self.gradients[each] for each in kept],
            losses=[self.losses[each] for each in kept],
            thresholds=self.thresholds[kept],
        )


def case(seed: int, units: int, largest: int, spread: float, ties: bool, max_rows: int | None, reduction: str) -> Case:
    rng = np.random.default_rng(seed)
    counts = np.where(rng.random(units) < 0.3, 1, rng.integers(1, largest + 1, units))
    thresholds = 10 ** rng.uniform(-spread / 2, spread / 2, units)
    scale = 10 ** rng.uniform(-3, 3, units)
    gradients = [each * rng.normal(size=(count, 3)) for each, count in zip(scale, counts, strict=True)]
    losses = [rng.integers(0, 2, count).astype(float) if ties else rng.normal(size=count) for count in counts]
    return Case(gradients, losses, thresholds, max_rows, reduction)


def unit_sum(case: Case, names: list[int], importance, order, clipping) -> torch.Tensor:
    """What training would release of a batch of all units, before noise: the code of a step."""
    labels = np.repeat(names, [len(each) for each in case.losses])
    units = Units.of(labels, max_rows=case.max_rows, reduction=case.reduction)
    rows = torch.from_numpy(np.concatenate(case.gradients)), torch.from_numpy(np.concatenate(case.losses))
    batch = UnitBatch.of(units.draw(np.arange(len(units)), WORD), lambda at: tuple(each[at] for each in rows))
    with gradients_on(ReferenceEngine(), MODEL, OFFSET_LOSSES[case.reduction], batch) as found:
        measured = found.measure()
        candidates = Candidates(np.array(names), np.zeros(len(names), dtype=int), measured.losses, measured.grad_norms)
        ranking = order.ranking(candidates, SeededSource(1))
        weights = importance_weights(importance, case.thresholds, ranking)
        return found.weighted_sum(weights * clipping.factors(measured.grad_norms, case.thresholds))


orders = st.sampled_from([*ORDERS.values(), by_score(lambda one: one.loss / (1 + one.grad_norm))])
shapes = st.sampled_from([None, BetaTail(), BetaTail(0.5, 3), StepTail((1.0, 0.5, 0.0)), FunctionTail(lambda u: 1 - u)])


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 9),
    largest=st.sampled_from([1, 3, 9, 150]),
    spread=st.sampled_from([0.0, 2.0, 5.0]),
    ties=st.booleans(),
    max_rows=st.sampled_from([None, 1, 4, 100]),
    reduction=st.sampled_from(["mean", "sum"]),
    order=orders,
    shape=shapes,
    clipping=st.sampled_from([FlatClipping(), AutoClipping()]),
    share=st.sampled_from([0.2, 0.5, 2.0]),
)
@tries(30)
def test_one_unit_moves_the_sum_by_at_most_its_threshold(
    seed, count, largest, spread, ties, max_rows, reduction, order, shape, clipping, share
):
    """Units of one row and of hundreds, thresholds five orders of magnitude apart, every order and tail."""
    batch = case(seed, count, largest, spread, ties, max_rows, reduction)
    tail = None if shape is None else Importance(shape, share=share).tail(float(batch.thresholds.sum()))
    names = list(range(100, 100 + count))
    whole = unit_sum(batch, names, tail, order, clipping)
    for unit in {0, count // 2, count - 1}:
        less = unit_sum(batch.without(unit), names[:unit] + names[unit + 1 :], tail, order, clipping)
        assert float((whole - less).norm()) <= batch.thresholds[unit] * SLACK


def test_one_unit_of_thousands_of_rows_moves_the_sum_by_at_most_its_threshold():
    batch = case(5, 4, 1, 5.0, False, None, "mean")
    batch.gradients[2], batch.losses[2] = np.full((5000, 3), 10.0), np.ones(5000)
    tail = Importance(BetaTail()).tail(float(batch.thresholds.sum()))
    arguments = tail, ORDERS["descending-loss"], FlatClipping()
    moved = unit_sum(batch, [0, 1, 2, 3], *arguments) - unit_sum(batch.without(2), [0, 1, 3], *arguments)
    assert float(moved.norm()) <= batch.thresholds[2] * SLACK
    assert float(moved.norm()) > 0.1 * batch.thresholds[2]  # it is there


@pytest.mark.parametrize("most", [64, 2])
@given(seed=st.integers(0, 2**32 - 1), power=st.sampled_from([-38, -19, 0, 15, 19, 38]), cancelling=st.booleans())
@tries(12)
def test_the_bound_holds_at_the_ends_of_single_precision(most, seed, power, cancelling):
    """By the engine, in float32: rows that cancel, or are next to nothing or overflow, whole or piece by piece."""
    rng = np.random.default_rng(seed)
    counts = np.array([1, 3, 40, 2, 1])
    labels, total = np.repeat(np.arange(5), counts), int(counts.sum())
    inputs = rng.normal(size=(total, 3)) * 10.0 ** (power * (labels == 2))[:, None]
    if cancelling:
        inputs[labels == 2] = np.repeat(inputs[labels == 2][:20], 2, axis=0) * np.tile([1, -1], 20)[:, None]
    rows = torch.from_numpy(inputs).float(), torch.from_numpy(rng.integers(0, 2, total)).float()
    thresholds = 10 ** rng.uniform(-2, 2, 5)
    tail = Importance(BetaTail()).tail(float(thresholds.sum()))

    def summed(chosen: np.ndarray) -> torch.Tensor:
        units = Units.of(labels)
        batch = UnitBatch.of(units.draw(chosen, WORD), lambda at: tuple(each[at] for each in rows))
        with gradients_on(BookkeepingEngine(), SINGLE, SINGLE_LOSSES, batch) as found:
            measured = found.measure()
            given = Candidates(chosen, np.zeros(len(chosen), dtype=int), measured.losses, measured.grad_norms)
            ranking = ORDERS["descending-loss"].ranking(given, SeededSource(1))
            weights = importance_weights(tail, thresholds[chosen], ranking)
            return found.weighted_sum(weights * FlatClipping().factors(measured.grad_norms, thresholds[chosen]))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(unit_gradients, "MOST_ROWS", most)
        patched.setattr(unit_gradients, "ROWS_AT_ONCE", 8)
        whole = summed(np.arange(5))
        for unit in range(5):
            less = summed(np.delete(np.arange(5), unit))
            assert float((whole - less).norm()) <= thresholds[unit] * SLACK
    assert whole.isfinite().all()


# Controls ------------------------------------------------------------------------------------------------------------


def same_rows(count: int) -> Case:
    """A unit of many equal rows among units of one."""
    others = [np.array([[1.0, 0.0, 0.0]]) for _ in range(3)]
    return Case(
        [np.tile([0.0, 9.0, 0.0], (count, 1)), *others], [np.ones(count), *[np.ones(1)] * 3], np.ones(4), None, "mean"
    )


def moved(total, batch: Case, unit: int = 0) -> float:
    return float(np.linalg.norm(total(batch) - total(batch.without(unit)))) / float(batch.thresholds[unit])


def correct(batch: Case) -> np.ndarray:
    names = list(range(4 - len(batch.thresholds), 4))
    return unit_sum(batch, names, None, ORDERS["descending-loss"], FlatClipping()).numpy()


def clipped(rows: np.ndarray, threshold: float) -> np.ndarray:
    return rows * np.minimum(1.0, threshold / np.linalg.norm(rows, axis=-1, keepdims=True))


def clipped_per_row_and_summed(batch: Case) -> np.ndarray:
    pairs = zip(batch.gradients, batch.thresholds, strict=True)
    return np.sum([clipped(rows, threshold).sum(0) for rows, threshold in pairs], axis=0)


def divided_by_the_rows_of_the_batch(batch: Case) -> np.ndarray:
    """A unit changes what all others are divided by."""
    realised = sum(len(rows) for rows in batch.gradients)
    units = zip(batch.gradients, batch.thresholds, strict=True)
    summed = np.sum([clipped(rows.mean(0), threshold) for rows, threshold in units], axis=0)
    return summed * 40 / realised


def test_the_check_passes_the_code_and_catches_what_is_often_done_instead():
    batch = same_rows(40)
    assert moved(correct, batch) <= SLACK
    assert moved(clipped_per_row_and_summed, batch) > 30
    assert moved(divided_by_the_rows_of_the_batch, batch) > 10


def test_the_check_catches_a_key_that_reads_other_units_rows(monkeypatch):
    """A unit's loss less the mean over all rows of the batch: its rows move the others past each other."""

    def relative(self) -> Measured:
        honest = measure(self)
        rows = np.average(honest.losses, weights=self.row_counts)
        return dataclasses.replace(honest, losses=np.abs(honest.losses - rows))

    measure = unit_gradients._UnitGradients.measure
    rng, worst = np.random.default_rng(0), {"honest": 0.0, "relative": 0.0}
    batches = []
    for _ in range(30):
        size = 6
        losses = [np.full(50, 9.0), *[rng.normal(size=1) for _ in range(size - 1)]]
        signs = rng.choice([-9.0, 9.0], size)
        gradients = [np.tile([signs[0], 0, 0], (50, 1)), *[np.array([[sign, 0, 0]]) for sign in signs[1:]]]
        batches.append(Case(gradients, losses, np.append(0.05, np.ones(size - 1)), None, "mean"))
    for kind in worst:
        if kind == "relative":
            monkeypatch.setattr(unit_gradients._UnitGradients, "measure", relative)
        for batch in batches:
            tail = Importance(StepTail((1.0, 0.0)), share=0.7).tail(float(batch.thresholds.sum()))
            full, less = (
                unit_sum(
                    each, list(range(6 - len(each.thresholds), 6)), tail, ORDERS["descending-loss"], FlatClipping()
                )
                for each in (batch, batch.without(0))
            )
            worst[kind] = max(worst[kind], float((full - less).norm()) / 0.05)
    assert worst["honest"] <= SLACK
    assert worst["relative"] > 2


def test_rows_sampled_one_by_one_hit_a_unit_more_often_than_its_rate():
    """Control for sampling: with a coin for each row, a unit of k rows is in a batch with 1 - (1 - q)^k, not q."""
    from inosgd.sampling import PoissonSampler

    units, rate, source = Units.of(np.repeat(np.arange(200), 10)), 0.1, SeededSource(2)
    by_unit = PoissonSampler(np.full(len(units), rate))
    by_row = PoissonSampler(np.full(units.row_count, rate))
    drawn = np.mean([len(by_unit.draw(source)) for _ in range(100)]) / 200
    hit = np.mean([len(np.unique(units.of_row[by_row.draw(source)])) for _ in range(100)]) / 200
    error = 5 * math.sqrt(rate / 20_000)
    assert abs(drawn - rate) < error
    assert abs(hit - (1 - 0.9**10)) < 5 * error
    assert hit > 6 * rate


# Training ------------------------------------------------------------------------------------------------------------


def network(dropout: float = 0.0, dtype=torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 2)).to(dtype)


LOSSES = supervised(F.cross_entropy)


def data(count: int, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return inputs, (inputs[:, 0] > 0).long()


def plan_of(table: OwnerTable, steps: int = 4, noise: float = 0.5) -> Plan:
    count = len(table)
    terms = Terms.for_owners(table, np.linspace(0.4, 0.6, count), np.linspace(0.2, 0.5, count), noise)
    return Plan(table, (Phase(steps, terms),), "pld", np.zeros(count))


def owned(units: Units, rows: int) -> Owners:
    budgets = {"a": Budget(epsilon=1e9, delta=1e-5), "b": Budget(epsilon=2e9, delta=1e-5)}
    labels = np.where(units.of_row[np.arange(rows)] % 2 == 0, "a", "b")
    return units.owned_by(Owners.from_labels(labels, budgets))


def trained(trainer: Trainer, *, seed: int = 3, dropout: float = 0.0, dtype=torch.float32) -> torch.Tensor:
    model = network(dropout, dtype)
    state = TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=0.5), SeededSource(seed))
    fit(trainer, state)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("engine", [ReferenceEngine(), BookkeepingEngine(), BookkeepingEngine(physical_batch_size=8)])
@pytest.mark.parametrize("method", [DP_SGD, INO_SGD])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_units_of_one_row_have_the_bits_of_a_training_without_units(engine, method: Method, dropout):
    rows = 40
    units = Units.of(np.arange(rows), name="person", max_rows=3)
    by_unit = owned(units, rows)
    by_row = Owners(dataclasses.replace(by_unit.table, unit="example"), by_unit.assignment)
    plain = Trainer(plan_of(by_row.table), by_row, data(rows), LOSSES, method, engine)
    grouped = Trainer(plan_of(by_unit.table), by_unit, data(rows), LOSSES, method, engine, units=units)
    assert torch.equal(trained(plain, dropout=dropout), trained(grouped, dropout=dropout))


@pytest.mark.parametrize("engine", [ReferenceEngine(), BookkeepingEngine(), BookkeepingEngine(physical_batch_size=2)])
@pytest.mark.parametrize("copies", [2, 3, 5])
def test_units_of_equal_rows_give_the_sum_of_one_row(engine, copies):
    rows = 30
    inputs, targets = data(rows, torch.float64)
    single = Units.of(np.arange(rows), name="person")
    several = Units.of(np.repeat(np.arange(rows), copies), name="person")
    owners = owned(single, rows)
    plan = plan_of(owners.table)
    one = Trainer(plan, owners, (inputs, targets), LOSSES, INO_SGD, ReferenceEngine(), units=single)
    repeated = inputs.repeat_interleave(copies, 0), targets.repeat_interleave(copies, 0)
    many = Trainer(plan, owners, repeated, LOSSES, INO_SGD, engine, units=several)
    torch.testing.assert_close(*(trained(each, dtype=torch.float64) for each in (one, many)), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("most", [64, 2])
@pytest.mark.parametrize("engine", [ReferenceEngine(), BookkeepingEngine()])
def test_a_units_loss_and_gradient_are_those_of_its_rows_by_plain_autograd(monkeypatch, reduction, most, engine):
    """Also piece by piece, three rows at a time."""
    monkeypatch.setattr(unit_gradients, "MOST_ROWS", most)
    monkeypatch.setattr(unit_gradients, "ROWS_AT_ONCE", 3)
    rows, model = data(23, torch.float64), network(dtype=torch.float64)
    units = Units.of(np.array([0] * 9 + [1] + [2] * 3 + [3] * 4 + [0, 2, 3] * 2), reduction=reduction)
    parameters, gradients, losses = list(model.parameters()), [], []
    for unit in range(len(units)):
        mine = torch.from_numpy(units.rows_of(np.array([unit])))
        values = LOSSES(model, (rows[0][mine], rows[1][mine]))
        loss = values.mean() if reduction == "mean" else values.sum()
        gradients.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)]))
        losses.append(float(values.detach().mean()))
    stacked, coefficients = torch.stack(gradients), np.array([0.5, 0.0, 2.0, 1.0])
    batch = UnitBatch.of(units.draw(np.arange(4), WORD), lambda at: (rows[0][at], rows[1][at]))
    with gradients_on(engine, model, UnitLosses(LOSSES, reduction), batch) as found:
        measured = found.measure()
        total = found.weighted_sum(coefficients)
    np.testing.assert_allclose(measured.losses, losses, rtol=1e-12)
    np.testing.assert_allclose(measured.grad_norms, stacked.norm(dim=1).numpy(), rtol=1e-12)
    torch.testing.assert_close(total, torch.from_numpy(coefficients) @ stacked)


def test_a_unit_that_passes_in_pieces_draws_the_same_masks_when_it_is_summed(monkeypatch):
    monkeypatch.setattr(unit_gradients, "MOST_ROWS", 2)
    rows, model, losses = data(20, torch.float64), network(0.5, torch.float64), UnitLosses(LOSSES)
    units = Units.of(np.repeat([0, 1], 10))
    batch = UnitBatch.of(units.draw(np.arange(2), WORD), lambda at: (rows[0][at], rows[1][at]))
    torch.manual_seed(4)
    with gradients_on(ReferenceEngine(), model, losses, batch) as found:
        norms = found.measure().grad_norms
        after = torch.get_rng_state()
        sums = [found.weighted_sum(np.eye(2)[unit]) for unit in (0, 1, 0)]
        assert torch.equal(torch.get_rng_state(), after)
    np.testing.assert_allclose([float(each.norm()) for each in sums], norms[[0, 1, 0]], rtol=1e-12)


def test_an_empty_batch_is_a_batch():
    units = Units.of(np.repeat([0, 1], 3))
    rows = data(6)
    batch = UnitBatch.of(units.draw(np.zeros(0, dtype=int), WORD), lambda at: (rows[0][at], rows[1][at]))
    with gradients_on(ReferenceEngine(), network(), UnitLosses(LOSSES), batch) as found:
        assert len(found.measure().losses) == 0
        assert not found.weighted_sum(np.zeros(0)).any()


def test_the_ledger_counts_units_and_a_step_is_one_of_units():
    units = Units.of(np.repeat(np.arange(12), 3), name="patient")
    owners = owned(units, 36)
    plan = plan_of(owners.table, steps=2)
    trainer = Trainer(plan, owners, data(36), LOSSES, INO_SGD, ReferenceEngine(), units=units)
    model, ledger = network(), Ledger.for_plan(plan)
    state = TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=0.1), SeededSource(0), ledger)
    seen = []
    fit(trainer, state, callbacks=[lambda _, now: seen.append(now.batch_size)])
    assert max(seen) <= 12
    assert ledger.table.unit == "patient"
    assert ledger.table.sizes.sum() == 12


@pytest.mark.parametrize(
    ("units", "owners", "message"),
    [
        (lambda: Units.of(np.repeat(np.arange(5), 3)), None, "they have 15 rows, and there are 12 examples"),
        (
            lambda: None,
            None,
            "their budgets protect each patient, and a training on these examples protects each example",
        ),
        (lambda: Units.of(np.repeat(np.arange(4), 3), name="visit"), None, "protects each visit"),
    ],
)
def test_a_trainer_refuses_units_that_are_not_those_of_owners_and_examples(units, owners, message):
    patients = Units.of(np.repeat(np.arange(4), 3), name="patient")
    if units() is None:
        patients = Units.of(np.arange(12), name="patient")
    who = owned(patients, 12)
    with pytest.raises(InvalidArgumentError, match=message):
        Trainer(plan_of(who.table), who, data(12), LOSSES, INO_SGD, units=units())


# Counts of classes ---------------------------------------------------------------------------------------------------


@given(labels=label_lists, seed=st.integers(0, 999))
@tries(40)
def test_one_unit_moves_counts_of_classes_by_at_most_one(labels, seed):
    classes = np.random.default_rng(seed).integers(0, 3, len(labels))
    units = Units.of(np.array(labels))
    budgets = {"a": 1.0, "b": 2.0}
    owners = units.owned_by(Owners.from_labels(np.where(units.of_row % 2 == 0, "a", "b"), budgets, delta=1e-6))
    terms = Terms.for_owners(owners.table, np.ones(2), np.ones(2), 1.0)

    def counted(chosen: np.ndarray) -> np.ndarray:
        part = units.only(chosen)
        rows = np.sort(units.rows_of(chosen))
        assignment = owners.assignment[chosen]
        sized = dataclasses.replace(owners.table, sizes=np.bincount(assignment, minlength=2))
        return _histograms(Owners(sized, assignment), Labels(("x", "y", "z"), classes[rows]), terms, part)

    everyone = np.arange(len(units))
    whole = counted(everyone)
    assert whole.sum() == pytest.approx(len(units), abs=1e-3)
    for unit in everyone[: 3 if len(units) > 1 else 0]:
        change = whole - counted(everyone[everyone != unit])
        assert np.linalg.norm(change) <= 1
        assert np.flatnonzero(np.abs(change).sum(1)).tolist() == [owners.assignment[unit]]


def test_counts_by_row_would_break_that_bound():
    """Control: a unit of nine rows of one class."""
    classes, units = np.zeros(9, dtype=int), Units.of(np.zeros(9, dtype=int))
    owners = units.owned_by(Owners.from_labels(["a"] * 9, {"a": 1.0}, delta=1e-6))
    assert units.shares_of(classes, 2, owners, 1 << 20).tolist() == [[1 << 20, 0]]
    assert np.bincount(classes)[0] == 9


# Augmentation --------------------------------------------------------------------------------------------------------


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 2, 6, 5, generator=torch.Generator().manual_seed(2))


def test_copies_are_crops_and_flips_of_their_row_by_a_word_of_their_own():
    pictures, words = images(40), SeededSource(1).words(40)
    changed = Augmentation(copies=1, padding=1)(pictures, words)
    padded = F.pad(pictures, [1] * 4)
    seen = set()
    for image, row, around in zip(changed, pictures, padded, strict=True):
        options = {
            (down, right, flip): torch.equal(image, cut.flip(2) if flip else cut)
            for down in range(3)
            for right in range(3)
            for flip in (False, True)
            for cut in [around[:, down : down + 6, right : right + 5]]
        }
        assert any(options.values())
        seen |= {option for option, same in options.items() if same}
        assert image.shape == row.shape
    assert len(seen) > 10
    assert torch.equal(Augmentation(copies=1, padding=0, flip=False)(pictures, words), pictures)


def test_a_copy_does_not_depend_on_what_else_is_in_the_batch():
    pictures, augmentation = images(6), Augmentation(copies=3, padding=2)
    units = Units.of(np.array([0, 0, 1, 2, 2, 2]))

    def copies_of(chosen: list[int]) -> torch.Tensor:
        batch = UnitBatch.of(units.draw(np.array(chosen), WORD), lambda at: (pictures[at], at), augmentation)
        start, count = batch.drawn.starts[-1], batch.drawn.counts[-1]
        return batch.take(np.arange(start, start + count))[0]

    assert torch.equal(copies_of([0, 1, 2]), copies_of([2]))
    assert len(copies_of([2])) == 9


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Conv2d(2, 3, 3), nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(inputs).tanh().mean((2, 3)))


def test_a_training_with_copies_protects_each_example_and_one_plain_copy_has_the_bits_of_none():
    torch.manual_seed(0)
    start = Pooled().state_dict()
    owners = Owners.from_labels(["a"] * 12 + ["b"] * 12, {"a": 1e9, "b": 2e9}, delta=1e-6)
    plan, rows = plan_of(owners.table), (images(24), torch.arange(24) % 2)

    def result(augmentation: Augmentation | None) -> torch.Tensor:
        model = Pooled()
        model.load_state_dict(start)
        trainer = Trainer(plan, owners, rows, LOSSES, INO_SGD, ReferenceEngine(), augmentation=augmentation)
        fit(trainer, TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=0.5), SeededSource(1)))
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    plain = result(None)
    assert torch.equal(result(Augmentation(copies=1, padding=0, flip=False)), plain)
    torch.testing.assert_close(result(Augmentation(copies=4, padding=0, flip=False)), plain)
    assert not torch.allclose(result(Augmentation(copies=4)), plain)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ((torch.zeros(2, 3), torch.zeros(2)), "augmentation crops images"),
        ((torch.zeros(2, 1, 3, 3, dtype=torch.uint8),), "augmentation crops images"),
        ({"x": torch.zeros(2, 1, 3, 3)}, "a dict cannot be augmented"),
    ],
)
def test_what_is_no_image_is_not_augmented(examples, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Augmentation()(examples, SeededSource(0).words(2))


class Blended(Augmentation):
    """Each image with half of the next one, as mixup has it."""

    def __call__(self, examples, words):
        return examples[0] + examples[0].roll(1, 0) / 2, examples[1]


class Darker(Augmentation):
    """Each image by itself."""

    def __call__(self, examples, words):
        return examples[0] * torch.from_numpy(words / 2.0**64).float()[:, None, None, None], examples[1]


def test_an_augmentation_that_reads_other_examples_is_refused():
    owners = Owners.from_labels(["a"] * 6, {"a": 1e9}, delta=1e-6)
    given = plan_of(owners.table), owners, (images(6), torch.arange(6) % 2), LOSSES, INO_SGD
    assert Trainer(*given, augmentation=Darker()).units is not None
    with pytest.raises(InvalidArgumentError, match="augmentation: a row of the changed batch depends on other rows"):
        Trainer(*given, augmentation=Blended())


def test_words_of_rows_differ_from_what_rows_are_chosen_by():
    units = Units.of(np.zeros(50, dtype=int))
    drawn = units.draw(np.array([0]), WORD)
    chosen_by = mixed_words(np.arange(50), mixed_words(units.keys, WORD)[0])
    assert not np.intersect1d(drawn.words, chosen_by).size


def test_names_of_joint_owners_are_told_from_others():
    assert parts_of(JOINT.join("ab"), {"a"}) == ()
    assert parts_of("a", {"a"}) == ()
