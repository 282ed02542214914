"""The frontier: rates from validation seeds, paired and corrected differences, and a page that says what fails."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import cloudpickle
import pytest

from inosgd.compare.entrant import entrants
from inosgd.method import AUTO, DP_SGD, IDP_SGD, INO_SGD
from inosgd.paper import frontier
from inosgd.paper.frontier import FRONTIER, Entry, ablated, measure, read_measured, write_measured
from inosgd.paper.frontier_report import held_against, holm, render
from inosgd.paper.own import MIXTURES, dealt_out, hospitals, mixture_study
from inosgd.parallel.workers import Workers
from inosgd.study.built_in import STUDIES
from inosgd.study.config import plan_once

ONE = Workers(jobs=1)
TEST_STUDIES = {"CF-PC", "CM-PC", "SU-LS", "x-ray-hospitals", "CIFAR-collectors", "cardiotocogram-clinics"}


@pytest.fixture
def quick(monkeypatch):
    study = STUDIES["digits"].changed({"steps": 3})
    monkeypatch.setattr(Entry, "study", lambda self, data: study)
    monkeypatch.setattr(Entry, "rates", property(lambda self: (self.rate, 2 * self.rate)))
    monkeypatch.setattr(frontier, "entered", lambda _: entrants([DP_SGD, IDP_SGD, INO_SGD, AUTO], ["sample"]))
    return study


def test_every_method_has_its_own_rate_and_all_share_the_seeds(quick, tmp_path):
    seen = []
    asked = Entry("digits", 0.02, 2, ablation=True)
    measured = measure(asked, tmp_path, tmp_path / "cache", workers=ONE, notice=seen.append)
    tried_by = {label: set(tried) for label, (_, tried) in measured.rates.items()}
    assert tried_by == {label: {0.02, 0.04} for label in ("dp-sgd", "idp-sgd", "ino-sgd", "auto")}
    for rate, tried in measured.rates.values():
        assert tried[rate] == max(tried.values())
    assert {len(rows) for rows in measured.rows.values()} == {2}
    assert measured.rows["auto"][0].last is not None
    parts = {
        "plain loss",
        "target `natural`",
        "target `classes`",
        "with a tail",
        "plan `sample`",
        "plan `uniform`",
        "classes counted",
    }
    assert set(measured.ablation) == parts | {f"rate of DP-SGD, in {unit} units" for unit in ("noise", "batch")}
    write_measured(measured, tmp_path / "kept")
    (kept,) = read_measured(tmp_path / "kept")
    assert kept.to_json() == measured.to_json()
    page = render([kept])
    assert "Not trained yet: breast-cancer" in page
    assert "Against dp-sgd: the higher mean in both measures in" in page
    seen.clear()
    measure(asked, tmp_path, tmp_path / "cache", workers=ONE, notice=seen.append)
    assert not seen


def test_what_is_ahead_by_chance_is_not_called_better(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(Entry, "rates", property(lambda self: (self.rate,)))
    monkeypatch.setattr(frontier, "VALIDATION_SEEDS", (0,))
    measured = measure(Entry("digits", 0.02, 2), tmp_path, tmp_path / "cache", workers=ONE)
    same = dataclasses.replace(measured, rows={**measured.rows, "dp-sgd": measured.rows["auto"]})
    assert not any(held.better or held.worse for held in held_against([same], "dp-sgd"))


def test_the_correction_is_holms():
    assert holm([0.01, 0.02, 0.03, 0.04]) == [0.04, 0.06, 0.06, 0.06]
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_the_rule_was_not_found_on_the_studies_that_test_it():
    assert {entry.name for entry in FRONTIER if not entry.found_on} == TEST_STUDIES


def test_a_part_is_taken_away_at_a_time():
    noise_study = STUDIES["digits"].changed({"learning_rate_unit": "noise"})
    rows = {label: (study, entrant) for label, study, entrant in ablated(noise_study, 0.04, 0.02)}
    whole, losses = AUTO.adjustment, {"plain loss", "target `natural`", "target `classes`"}
    assert rows["plain loss"][1].method.adjustment is None
    assert rows["with a tail"][1].method.importance is not None
    assert rows["plan `uniform`"][1].method.variant == "uniform"
    assert all(rows[label][1].method.adjustment == whole for label in set(rows) - losses)
    targets = {label: rows[label][1].method.adjustment for label in losses - {"plain loss"}}
    assert {label: (each.target, each.tau) for label, each in targets.items()} == {
        f"target `{target}`": (target, whole.tau) for target in ("natural", "classes")
    }
    assert {study.config.learning_rate for label, (study, _) in rows.items() if "DP-SGD" not in label} == {0.04}
    assert rows["rate of DP-SGD, in noise units"][0].config.learning_rate == 0.02
    assert rows["classes counted"][0].split(0).shares is None


def test_a_rate_in_batch_units_is_that_of_dp_sgd_and_another_one_for_auto():
    study = STUDIES["digits"].changed({"learning_rate_unit": "noise"})
    at_rates = {label: each.config for label, each, _ in ablated(study, 0.04, 0.02)}
    table, config = study.split(0).owners.table, at_rates["rate of DP-SGD, in batch units"]
    dp_sgd, auto = plan_once(study.config.by(DP_SGD), table).at(0), plan_once(study.config.by(AUTO), table).at(0)
    assert config.learning_rate_unit == "batch"
    assert config.learning_rate / dp_sgd.expected_batch_size * dp_sgd.noise_scale == pytest.approx(0.02)
    assert config.learning_rate / auto.expected_batch_size * auto.noise_scale < 0.015


def test_owners_of_our_own_studies_hold_mixtures():
    assert [round(budget.epsilon, 2) for budget in hospitals(3, 0.5, 8.0).values()] == [0.5, 2.0, 8.0]
    data = mixture_study("digits-hospitals", Path("nowhere")).split(0)
    shares = data.shares.rows_for(data.owners.table.names)
    assert ((shares > 0.02).sum(axis=1) >= 3).all()
    assert (dealt_out(data.class_numbers, 6) == dealt_out(data.class_numbers, 6)).all()
    assert set(MIXTURES) <= {entry.name for entry in FRONTIER}


@pytest.mark.parametrize("name", MIXTURES)
def test_our_own_studies_go_to_other_processes(name):
    sent = cloudpickle.dumps(mixture_study(name, Path("nowhere")))
    assert cloudpickle.loads(sent).name == name
