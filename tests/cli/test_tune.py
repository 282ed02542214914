"""``inosgd tune`` from the outside."""

from __future__ import annotations

import json
import stat

import pytest

from inosgd.tuning import private
from tests.study.writers import write_study

SPACE = ("--try", "learning_rate=1,2", "--jobs", 1)


@pytest.fixture
def study(tmp_path):
    return write_study(tmp_path, ("[training]\n", '[training]\naccountant = "rdp"\n'))


def test_nobody_tunes_without_saying_on_whose_data(inosgd, study, tmp_path):
    for ways in ((), ("--public", "--private")):
        outcome = inosgd("tune", study, *SPACE, *ways)
        assert outcome.code == 2
        assert "does not make trainings on private ones free" in outcome.err.replace("\n", " ")
    assert not (tmp_path / "runs").exists()


def test_on_public_data_it_is_free_and_says_why(inosgd, study, tmp_path):
    outcome = inosgd("tune", study, *SPACE, "--public")
    assert outcome.code == 0, outcome.err
    assert "no private example was touched" in outcome.out
    assert "[training]" in outcome.out
    assert not (tmp_path / "runs").exists()
    found = json.loads(inosgd("tune", study, *SPACE, "--public", "--json", "--out", tmp_path / "tuned").out)
    assert found["spent"] == 0
    assert (tmp_path / "tuned" / "training.toml").read_text() == found["training"]
    assert found["ranking"][0]["mean"] >= found["ranking"][1]["mean"]
    assert not (tmp_path / "runs").exists()


def test_on_private_data_the_price_comes_first(inosgd, study, tmp_path):
    outcome = inosgd("tune", study, *SPACE, "--private", "--trials", 3)
    assert outcome.code == 2
    assert "agree to the price with --yes" in outcome.err
    for words in ("hospital_a", "one trial", "the tuning", "are not protected"):
        assert words in outcome.err
    assert not (tmp_path / "runs").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_the_best_model_is_all_that_is_left(inosgd, study, tmp_path, monkeypatch):
    monkeypatch.setattr(private, "draw_trials", lambda *_: 2)
    outcome = inosgd("tune", study, *SPACE, "--private", "--trials", 3, "--yes", "--out", "tuned", "--json")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    folder = tmp_path / "tuned"
    assert json.loads((folder / "tuning.json").read_text()) == report
    for owner in report["owners"].values():
        assert owner["one_trial"] < owner["tuning"] <= owner["epsilon"]
    assert report["chosen"] in report["candidates"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "model",
        "training.toml",
        "trial-ledger.jsonl",
        "trial-plan.json",
        "tuning.json",
    ]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    card = (folder / "model" / "model-card.md").read_text()
    assert "chosen on the private examples" in card
    assert not list(tmp_path.glob(".*partial"))
    predicted = inosgd("predict", folder / "model", study.parent / "cases.csv", "--out", "predictions.csv")
    assert predicted.code == 0, predicted.err


def test_no_trial_is_an_outcome_too(inosgd, study, monkeypatch, tmp_path):
    monkeypatch.setattr(private, "draw_trials", lambda *_: 0)
    outcome = inosgd("tune", study, *SPACE, "--private", "--trials", 3, "--yes", "--out", "tuned")
    assert outcome.code == 0, outcome.err
    assert "there is no model. The price stands" in outcome.out
    assert [path.name for path in (tmp_path / "tuned").iterdir()] == ["tuning.json"]


def test_what_is_shown_does_not_depend_on_the_number_of_trials(inosgd, study, monkeypatch):
    """But for the result: not while it trains, and not at the end."""
    shown = []
    for count in (1, 3):
        monkeypatch.setattr(private, "draw_trials", lambda *_, count=count: count)
        outcome = inosgd("tune", study, *SPACE, "--private", "--trials", 3, "--yes", "--out", f"tuned-{count}")
        shown.append(outcome.err)
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--public", "--try", "learning_rate=1,fast"), "learning_rate='fast': give a number"),
        (("--public", "--try", "learning_rate=1"), "nothing to choose from"),
        (("--private", *SPACE, "--draw", "fixed"), "draw='fixed': choose one of poisson"),
        (("--private", *SPACE, "--trials", "1"), "mean=1.0"),
        (("--public", *SPACE, "--backend", "slurm"), "backend='slurm': choose one of local, ray, dask"),
    ],
)
def test_bad_requests_end_in_one_error(inosgd, study, arguments, words):
    outcome = inosgd("tune", study, *arguments)
    assert outcome.code == 2
    assert words in outcome.err.replace("\n", " ")
    assert outcome.out == ""
