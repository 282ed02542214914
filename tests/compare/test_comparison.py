"""Comparison: paired, parallel, and continued where it stopped."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import cloudpickle
import numpy as np
import pytest

from inosgd.compare import views
from inosgd.compare.common import Common
from inosgd.compare.comparison import Task, compare, missing_tasks, open_store, train_task
from inosgd.compare.entrant import Entrant, as_entered
from inosgd.compare.results import KEY, Result, result_key
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.method import IDP_SGD, INO_SGD
from inosgd.paper.datasets import ASSIGNMENTS, synthetic
from inosgd.paper.experiments import EXPERIMENTS, chosen_methods, experiment_named, fair_entrant, methods
from inosgd.paper.registry import study_of
from inosgd.parallel.workers import Workers
from inosgd.plan_config import Fairness
from inosgd.study.study import for_validation
from tests.processes import forked


@pytest.fixture(scope="module")
def study():
    loader = partial(synthetic, ASSIGNMENTS["CF"], "fish-vehicles-embeddings", train_per_class=20, test_per_class=5)
    study = study_of("CF-EN", "laptop", loader)
    return study.changed({"steps": 6, "expected_batch_size": 20.0})


def store_of(study, folder):
    return open_store(study, folder)


@pytest.fixture(scope="module")
def finished(study, tmp_path_factory):
    store = store_of(study, tmp_path_factory.mktemp("results"))
    results = list(compare(study, methods("sample"), range(3), store, workers=Workers(jobs=1)))
    assert len(results) == 9
    return store


def rows(store, variant="sample", seeds=range(3)):
    return {row.label: store.of(row, seeds) for row in methods(variant)}


def send_trained(pipe, packed: bytes) -> None:
    pipe.send_bytes(cloudpickle.dumps(train_task(cloudpickle.loads(packed))))


def test_another_process_has_the_same_result(study, finished):
    entrant = methods("sample")[2]
    with forked(send_trained, cloudpickle.dumps(Task(study, entrant, seed=0))) as (pipe, _):
        result = cloudpickle.loads(pipe.recv_bytes())
    here = finished.results[result_key(entrant, 0)]
    assert [point.to_json() for point in result.curve] == [point.to_json() for point in here.curve]


@pytest.mark.long  # two new processes, which take seconds to import torch
def test_processes_do_not_change_results(study, finished, tmp_path):
    parallel = store_of(study, tmp_path)
    list(compare(study, methods("sample")[1:], range(1), parallel, workers=Workers(jobs=2)))
    assert len(parallel.results) == 2
    for key, result in parallel.results.items():
        assert [point.to_json() for point in result.curve] == [point.to_json() for point in finished.results[key].curve]


def test_what_is_learnt_does_not_depend_on_how_often_it_is_judged(study, finished):
    entrant = methods("sample")[2]
    result = train_task(Task(study, entrant, seed=0, evaluations=1))
    assert len(result.curve) == 1
    assert result.final == finished.results[result_key(entrant, 0)].final


def test_an_interrupted_study_continues(study, finished, tmp_path):
    kept = finished.path.read_text().splitlines(keepends=True)
    (tmp_path / KEY).write_bytes((finished.path.parent / KEY).read_bytes())
    (tmp_path / "results.jsonl").write_text("".join(kept[:5]) + kept[5][:40])  # killed while writing the fifth result
    store = store_of(study, tmp_path)
    assert len(store.results) == 4
    assert len(missing_tasks(study, methods("sample"), range(3), store)) == 5
    list(compare(study, methods("sample"), range(3), store, workers=Workers(jobs=1)))
    again = store_of(study, tmp_path)
    assert set(again.results) == set(finished.results)
    for key, result in again.results.items():
        assert result.final == finished.results[key].final


def test_a_folder_of_other_settings_is_refused(study, finished):
    other = study.changed({"learning_rate": 1.0})
    with pytest.raises(InvalidArgumentError, match="results of other settings or data"):
        store_of(other, finished.path.parent)


def test_a_folder_of_other_data_is_refused(study, finished):
    def changed(seed):
        data = study.split(seed)
        examples = dataclasses.replace(data.examples, inputs=data.examples.inputs + 1e-3)
        return dataclasses.replace(data, examples=examples)

    other = dataclasses.replace(study, split=changed, origin=study.origin + " ")
    with pytest.raises(InvalidArgumentError, match="results of other settings or data"):
        store_of(other, finished.path.parent)


def test_what_trainings_have_in_common_survives_json_and_names_the_holders_of_classes(study):
    common = Common.of(study, b"k" * 32)
    assert Common.from_json(json.loads(json.dumps(common.to_json()))) == common
    assert {holder for _, holder in common.classes} == {"fish", "vehicles"}
    assert [owner[:2] for owner in common.owners] == [("fish", 1.0), ("vehicles", 5.0)]
    assert common.data != Common.of(study, b"l" * 32).data  # without the key no guess at the data can be tested


def test_a_failed_training_is_named_and_the_others_are_kept(study, tmp_path):
    broken = Entrant("broken", dataclasses.replace(IDP_SGD, variant="uniform", name="broken"), undersampling=1.0)
    broken = dataclasses.replace(broken, method=dataclasses.replace(IDP_SGD, variant="no such plan"))
    store = store_of(study, tmp_path)
    with pytest.raises(InosgdError, match=r"1 of 2 trainings failed.*broken \(no such plan\), seed 0"):
        list(compare(study, [broken, methods("sample")[1]], [0], store, workers=Workers(jobs=1)))
    assert len(store.results) == 1


def test_entrants_that_differ_in_name_only_are_trained_once(study, tmp_path):
    same = [dataclasses.replace(row, label="again") for row in methods("sample")]
    assert len(missing_tasks(study, methods("sample") + same, [0], store_of(study, tmp_path))) == 3
    assert result_key(same[0], 0) == result_key(methods("sample")[0], 0)
    assert result_key(same[0], 0) != result_key(same[0], 1)


def test_rows_of_different_experiments_have_different_keys():
    everything = [row for experiment in EXPERIMENTS.values() for row in experiment.rows("scale")]
    labels_of: dict[str, set[str]] = {}
    for row in everything:
        labels_of.setdefault(result_key(row, 0), set()).add(json.dumps({**row.to_json(), "label": ""}, sort_keys=True))
    assert all(len(contents) == 1 for contents in labels_of.values())
    assert len(labels_of) > 50


def test_summary_and_differences(finished):
    summary = views.summarize(rows(finished))
    assert list(summary) == ["dp-sgd", "idp-sgd", "ino-sgd"]
    results = rows(finished)["ino-sgd"]
    assert summary["ino-sgd"]["overall"]["mean"] == pytest.approx(np.mean([r.final.overall for r in results]))
    assert summary["ino-sgd"]["owners"]["fish"]["mean"] == pytest.approx(
        np.mean([r.final.owners["fish"].score for r in results])
    )
    assert summary["ino-sgd"]["spent_share"] <= 1
    found = views.differences(rows(finished))["ino-sgd - idp-sgd"]
    assert set(found) == {"1/4", "1/2", "3/4", "end"}
    pairs = zip(rows(finished)["ino-sgd"], rows(finished)["idp-sgd"], strict=True)
    expected = np.mean([ours.final.overall - theirs.final.overall for ours, theirs in pairs])
    assert found["end"]["overall"]["mean"] == pytest.approx(expected)


def test_missing_rows_are_left_out_of_views(finished):
    some = {**rows(finished), "never": []}
    for view in (views.summarize, views.curves, views.class_curves, views.pareto):
        assert "never" not in view(some)
    assert views.differences({"ino-sgd": rows(finished)["ino-sgd"]}) == {}


def test_curves_and_classes(finished):
    curve = views.curves(rows(finished))["idp-sgd"]
    assert curve["steps"] == [1, 2, 3, 4, 5, 6]
    assert len(curve["owners"]["vehicles"]["score"]) == 6
    classes = views.class_curves(rows(finished))["idp-sgd"]
    assert len(classes["recall"][0]) == 10


def test_change_against_budget_has_a_point_per_owner_and_seed(finished):
    change = views.change_against_budget(rows(finished))["ino-sgd"]["end"]
    assert sorted(set(change["epsilons"])) == [1.0, 5.0]
    assert len(change["changes"]) == 6


def test_dominance():
    better, worse = (
        {"overall": {"mean": 0.9}, "imbalance": {"mean": 0.1}},
        {"overall": {"mean": 0.8}, "imbalance": {"mean": 0.2}},
    )
    assert views._dominates(better, worse)
    assert not views._dominates(worse, better)
    assert not views._dominates(better, better)


def test_results_survive_json(finished):
    for result in finished.results.values():
        again = Result.from_json(json.loads(json.dumps(result.to_json())))
        assert again.to_json() == result.to_json()


def test_stages_are_never_later_than_asked(finished):
    result = next(iter(finished.results.values()))
    assert [result.at(share).step for share in (0.25, 0.5, 0.75, 1.0)] == [1, 3, 4, 6]


def test_cut_budgets_move_towards_the_strictest(study):
    data = study.split(0)
    cut = as_entered(data, Entrant("cut", IDP_SGD, budget_cut=0.5), 0)
    assert cut.owners.table.epsilons.tolist() == [1.0, 3.0]
    assert as_entered(data, Entrant("all", IDP_SGD, budget_cut=1.0), 0).owners.table.epsilons.tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(cut.owners.assignment, data.owners.assignment)


def test_undersampling_takes_from_liberal_owners_only(study):
    data = study.split(0)
    fewer = as_entered(data, Entrant("fewer", IDP_SGD, undersampling=0.5), 0)
    assert fewer.owners.table.sizes[0] == 100  # fish, the strict one
    assert 30 <= fewer.owners.table.sizes[1] <= 70
    assert len(fewer.examples.inputs) == len(fewer.examples) == len(fewer.owners) == len(fewer.train_groups)
    np.testing.assert_array_equal(fewer.train_groups, fewer.owners.assignment)


def test_validation_never_touches_held_out_examples(study):
    data = study.split(0)
    inner = for_validation(data, 0)
    held_out, judged, trained = (
        {row.numpy().tobytes() for row in inputs}
        for inputs in (data.held_out.inputs, inner.held_out.inputs, inner.examples.inputs)
    )
    assert not held_out & (judged | trained)
    assert len(inner.examples) + len(inner.held_out) == len(data.examples)


def test_one_seed_needs_no_other_split(study):
    def split(seed):
        if seed:
            raise InvalidArgumentError("a class that only held-out examples have")
        return study.split(0)

    alone = Common.of(dataclasses.replace(study, split=split), bytes(32))
    assert alone == Common.of(study, bytes(32))
    with pytest.raises(InvalidArgumentError, match="only held-out"):
        split(1)


def test_choices_are_checked():
    with pytest.raises(InvalidArgumentError, match="experiment='magic': choose one of methods"):
        experiment_named("magic")
    with pytest.raises(InvalidArgumentError, match="'ino-sgd-fair' is not one of dp-sgd, idp-sgd, ino-sgd"):
        chosen_methods("sample", ["ino-sgd-fair"])


def test_rows_without_knobs_of_their_own_take_the_studys(study):
    changed = study.changed({"fairness.exponent": 3.0}).config
    assert methods("fair")[1].config(changed).plan.fairness == Fairness(exponent=3.0)
    kept = fair_entrant(INO_SGD, Fairness(exponent=12.0))
    assert kept.config(changed).plan.fairness == Fairness(exponent=12.0)
