"""``inosgd reproduce`` from the outside, on made-up data."""

from __future__ import annotations

import json
from functools import partial

import pytest

from inosgd.cli import reproduce
from inosgd.paper.datasets import ASSIGNMENTS, synthetic
from inosgd.paper.registry import SETTINGS, study_of


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    def study_named(name, scale, _):
        setting = SETTINGS[name]
        study = study_of(name, scale, partial(synthetic, ASSIGNMENTS[setting.assignment], setting.data_set))
        return study.changed({"steps": 4, "expected_batch_size": 20.0})

    monkeypatch.setattr(reproduce, "study_named", study_named)
    monkeypatch.setenv("INOSGD_DATA", str(tmp_path))


QUICK = ("reproduce", "CF-EN", "--seeds", 2, "--jobs", 1)


def test_json_has_summary_and_differences(inosgd, made_up, tmp_path):
    outcome = inosgd(*QUICK, "--variants", "sample,fair", "--methods", "idp-sgd,ino-sgd", "--json", "--out", "run")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert list(report["summary"]) == ["idp-sgd", "ino-sgd", "idp-sgd (fair)", "ino-sgd (fair)"]
    for label in ("ino-sgd", "ino-sgd (fair)"):
        row = report["summary"][label]
        assert set(row["overall"]) == {"mean", "sd"}
        assert set(row["worst"]) == {"mean", "sd"}
        assert set(row["owners"]["fish"]) >= {"mean", "sd"}
        assert report["differences"][f"{label} - idp-sgd"]["end"]["worst"]["p"] is None  # below three seeds
    again = inosgd(*QUICK, "--variants", "sample,fair", "--methods", "idp-sgd,ino-sgd", "--json", "--out", "run")
    assert json.loads(again.out)["summary"] == report["summary"]  # continued: nothing was trained anew


def test_the_table_and_the_condition(inosgd, made_up):
    outcome = inosgd("reproduce", "CF-EN", "--seeds", 1, "--jobs", 1, "--condition", "--experiment", "order")
    assert outcome.code == 0, outcome.err
    words = " ".join(outcome.out.split())
    for wanted in ("descending-loss", "ascending-loss", "Fig. 19", "of the points the loss of", "Results: runs/"):
        assert wanted in words


def test_more_seeds_add_to_the_same_folder(inosgd, made_up, tmp_path):
    inosgd(*QUICK, "--methods", "idp-sgd")
    inosgd("reproduce", "CF-EN", "--seeds", 3, "--jobs", 1, "--methods", "idp-sgd")
    files = list(tmp_path.rglob("results.jsonl"))
    assert len(files) == 1
    assert len(files[0].read_text().splitlines()) == 1 + 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("CF-XX",), "name='CF-XX': choose one of CA-MLP"),
        (("CF-EN", "--experiment", "luck"), "experiment='luck': choose one of methods"),
        (("CF-EN", "--variants", "best"), "variants='best': choose one of uniform"),
        (("CF-EN", "--methods", "sgd"), "methods: 'sgd' is not one of dp-sgd"),
        (("CF-EN", "--methods", "idp-sgd", "--experiment", "order"), "only the experiment `methods` takes a choice"),
        (("CF-EN", "--scale", "huge"), "scale='huge': choose one of laptop, paper"),
        (("CF-EN", "--seeds", "0"), "seeds=0"),
        (("CF-EN", "--set", "fairness.exponent=-1"), "exponent=-1"),
        (("CF-EN", "--data", "nowhere"), "there is no such folder"),
        (("CF-EN",), "put embeddings/cifar100fv_train_efficientnet_lite1.npz"),
    ],
)
def test_bad_requests_end_in_one_error_and_leave_nothing(inosgd, tmp_path, monkeypatch, arguments, words):
    monkeypatch.setenv("INOSGD_DATA", str(tmp_path))
    outcome = inosgd("reproduce", *arguments)
    assert outcome.code == 2
    assert words in outcome.err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_without_a_data_folder(inosgd, monkeypatch):
    monkeypatch.delenv("INOSGD_DATA", raising=False)
    outcome = inosgd("reproduce", "CF-EN")
    assert outcome.code == 2
    assert "INOSGD_DATA" in outcome.err
