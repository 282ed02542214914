from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets import (
    ASSIGNMENTS,
    AssignedExamples,
    Assignment,
    DataSet,
    LabelledExamples,
    assign,
    synthetic,
)
from inosgd.paper.datasets.cifar_classes import CIFAR_10, CIFAR_100, FISH

EVERY_ONE = [(assignment, name) for assignment in ASSIGNMENTS.values() for name in assignment.data_sets]
RANDOM = {"CR", "CS", "COL", "COM", "CFS", "CFN"}


def done(name: str, seed: int = 0, train_per_class: int = 40) -> tuple[DataSet, AssignedExamples]:
    assignment = ASSIGNMENTS[name]
    data = synthetic(assignment, assignment.data_sets[-1], train_per_class=train_per_class)
    return data, assign(assignment, data, seed)


def classes_by_group(name: str, seed: int = 0) -> dict[str, set[str]]:
    data, assigned = done(name, seed)
    labels = data.train.targets[assigned.train_rows]
    return {
        group: {data.classes[label] for label in np.unique(labels[assigned.train_groups == row])}
        for row, group in enumerate(assigned.group_names)
    }


def test_the_paper_has_fourteen() -> None:
    assert ", ".join(ASSIGNMENTS) == "CA, PN, MN, CM, CL, CR, CS, COL, COM, CH, CF, CFS, CFN, SU"


@pytest.mark.parametrize(("assignment", "name"), EVERY_ONE, ids=lambda value: getattr(value, "name", value))
def test_what_holds_for_every_assignment(assignment: Assignment, name: str) -> None:
    data = synthetic(assignment, name)
    assigned = assign(assignment, data, seed=1)
    count = len(assigned.train_rows)
    assert len(assigned.owners) == len(assigned.train_targets) == len(assigned.train_groups) == count
    assert len(np.unique(assigned.train_rows)) == count
    assert set(assigned.train_targets) == set(assigned.held_out_targets) == set(range(len(assigned.class_names)))
    names = np.array(data.classes)
    held_out = names[data.test.targets[assigned.held_out_rows]]
    assert np.array_equal(held_out, np.array(assigned.class_names)[assigned.held_out_targets])
    if not assignment.flipped:
        seen = names[data.train.targets[assigned.train_rows]]
        assert np.array_equal(seen, np.array(assigned.class_names)[assigned.train_targets])
    group_of = dict(zip(held_out, assigned.held_out_groups, strict=True))
    seen_groups = [group_of[name] for name in names[data.train.targets[assigned.train_rows]]]
    assert np.array_equal(seen_groups, assigned.train_groups)
    assert (assigned.owners.table.deltas == 1e-5).all()


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_one_seed_gives_one_assignment(name: str) -> None:
    data, assigned = done(name, seed=3, train_per_class=10)
    assert assign(ASSIGNMENTS[name], data, seed=3) == assigned
    assert (assign(ASSIGNMENTS[name], data, seed=4) != assigned) == (name in RANDOM)


@pytest.mark.parametrize(
    ("name", "budgets"),
    [
        ("CA", {"pathologic": 3, "suspect": 4, "normal": 5}),
        ("PN", {"normal": 5, "pneumonia": 0.5}),
        ("MN", {"digits 0-4": 0.1, "digits 5-9": 1}),
        ("CM", dict(zip(CIFAR_10, np.arange(1, 11) / 2, strict=True))),
        ("CL", dict(zip(CIFAR_10, range(6, 16), strict=True))),
        ("CR", {f"owner {row}": row / 2 for row in range(1, 11)}),
        ("COL", dict(zip(CIFAR_10, np.arange(1, 11) / 2, strict=True))),
        ("COM", dict(zip(CIFAR_10, np.arange(1, 11) / 2, strict=True))),
        ("CH", dict(zip(CIFAR_100, 1 + np.arange(100) / 11, strict=True))),
        ("CF", {"fish": 1, "vehicles": 5}),
        ("CFN", {"fish": 1, "vehicles": 5}),
        ("SU", {"majority": 3, "others": 2}),
    ],
)
def test_budgets_are_the_papers(name: str, budgets: dict[str, float]) -> None:
    _, assigned = done(name, train_per_class=2)
    table = assigned.owners.table
    assert table.names == assigned.group_names == tuple(budgets)
    np.testing.assert_allclose(table.epsilons, list(budgets.values()))
    np.testing.assert_array_equal(table.epsilons, assigned.group_epsilons)


def test_owners_hold_the_papers_classes() -> None:
    assert classes_by_group("MN") == {"digits 0-4": set("01234"), "digits 5-9": set("56789")}
    assert classes_by_group("PN")["pneumonia"] == {"bacterial pneumonia", "viral pneumonia"}
    assert classes_by_group("CF")["fish"] == set(FISH)
    assert classes_by_group("CM") == {label: {label} for label in CIFAR_10}
    assert classes_by_group("SU")["majority"] == {"Russian"}
    assert len(classes_by_group("SU")["others"]) == 17


def test_random_classes_are_a_permutation_for_each_seed() -> None:
    held = [classes_by_group("CR", seed) for seed in range(6)]
    for groups in held:
        assert set.union(*groups.values()) == set(CIFAR_10)
        assert all(len(classes) == 1 for classes in groups.values())
    assert len({str(groups) for groups in held}) == 6


@pytest.mark.parametrize(("name", "share"), [("COL", 0.1), ("COM", 0.3)])
def test_overlaps_keep_sizes_and_spread_over_all_other_owners(name: str, share: float) -> None:
    _, assigned = done(name, train_per_class=90)
    assert (assigned.owners.table.sizes == 90).all()
    held = np.zeros((10, 10), dtype=int)
    np.add.at(held, (assigned.owners.assignment, assigned.train_groups), 1)
    assert (np.diag(held) == round(90 * (1 - share))).all()
    others = held[~np.eye(10, dtype=bool)]
    assert others.min() == others.max() == round(90 * share) // 9


def test_flips_change_a_tenth_of_the_labels_and_no_owner() -> None:
    _, clean = done("CF", train_per_class=50)
    _, noisy = done("CFN", train_per_class=50)
    changed = clean.train_targets != noisy.train_targets
    assert changed.sum() == 50
    assert noisy.owners == clean.owners
    assert np.array_equal(noisy.held_out_targets, clean.held_out_targets)
    assert len(np.unique((noisy.train_targets - clean.train_targets)[changed] % 10)) == 9


def test_flipped_examples_are_chosen_at_random() -> None:
    _, clean = done("CF", train_per_class=50)
    flipped = [np.flatnonzero(done("CFN", seed, 50)[1].train_targets != clean.train_targets) for seed in (0, 1)]
    assert not np.array_equal(*flipped)


def test_each_record_has_a_budget_within_a_quarter_of_its_class() -> None:
    _, assigned = done("CS", train_per_class=200)
    table = assigned.owners.table
    assert (table.sizes == 1).all()
    apart = table.epsilons - assigned.group_epsilons[assigned.train_groups]
    assert (np.abs(apart) <= 0.25).all()
    np.testing.assert_allclose(apart.std(), 0.25 / np.sqrt(3), rtol=0.05)
    assert abs(apart.mean()) < 0.02


def test_each_record_has_a_normal_budget_around_its_category() -> None:
    _, assigned = done("CFS", train_per_class=400)
    epsilons = assigned.owners.table.epsilons
    fish, vehicles = epsilons[assigned.train_groups == 0], epsilons[assigned.train_groups == 1]
    assert epsilons.min() >= 0.1
    np.testing.assert_allclose([vehicles.mean(), vehicles.std()], [5, 0.5], atol=0.05)
    np.testing.assert_allclose(np.median(fish), 1, atol=0.06)  # the lowest thirtieth is drawn again


def test_as_many_from_each_class_as_the_paper_takes() -> None:
    assignment = dataclasses.replace(ASSIGNMENTS["PN"], per_class=5)
    data = synthetic(assignment, "chest-xray-embeddings", train_per_class=30)
    drawn = [assign(assignment, data, seed) for seed in (0, 1)]
    assert np.bincount(drawn[0].train_targets).tolist() == [5, 5, 5]
    assert drawn[0].owners.table.sizes.tolist() == [5, 10]
    assert not np.array_equal(drawn[0].train_rows, drawn[1].train_rows)
    few = DataSet(
        data.name,
        LabelledExamples(data.train.inputs[:4], np.array([0, 1, 2, 1])),
        data.test,
        data.classes,
    )
    assert np.bincount(assign(assignment, few, 0).train_targets).tolist() == [1, 1, 1]


def test_classes_are_renumbered_in_the_order_of_the_data() -> None:
    data = synthetic(ASSIGNMENTS["CF"], "cifar-100")
    assigned = assign(ASSIGNMENTS["CF"], data, seed=0)
    assert len(data.classes) == 100
    assert assigned.class_names == tuple(sorted(assigned.class_names))
    assert len(assigned.class_names) == 10


def test_absent_classes_are_named() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"'CH' needs classes that the training .* lack: apple, baby, .* 80 more"
    ):
        assign(ASSIGNMENTS["CH"], synthetic(ASSIGNMENTS["CF"], "cifar-100"), seed=0)


def test_another_data_set_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'MN' is for 'mnist', not for 'names'"):
        assign(ASSIGNMENTS["MN"], synthetic(ASSIGNMENTS["SU"]), seed=0)


def test_a_seed_is_a_whole_number() -> None:
    with pytest.raises(InvalidArgumentError, match="seed=-1"):
        done("CM", seed=-1)


def test_whatever_is_ours_is_said() -> None:
    assert {name for name, assignment in ASSIGNMENTS.items() if not assignment.ours} == {"MN", "CM", "CL", "CH", "CF"}
