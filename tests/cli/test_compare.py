"""``inosgd compare`` from the outside."""

from __future__ import annotations

import json
import stat

import pytest

from inosgd import Plan
from inosgd.method import METHODS

QUICK = ("compare", "--steps", 6, "--seeds", 2, "--jobs", 1, "--no-report")


@pytest.fixture(scope="module")
def report(inosgd_once):
    outcome = inosgd_once(*QUICK, "--json", "--out", "run")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_json_has_what_every_owner_gets(report):
    assert list(report["methods"]) == list(METHODS)
    for method in report["methods"].values():
        assert 0 <= method["worst"]["mean"] <= method["overall"]["mean"] + 0.5
        for owner in ("digits 0-4", "digits 5-9"):
            assert set(method["owners"][owner]) >= {"mean", "sd", "loss"}
            assert 0 < method["spent"][owner] <= method["allowed"][owner]
            assert method["group"][owner]["1"] == pytest.approx(method["spent"][owner], rel=1e-3)
            assert method["group"][owner]["10"] > method["group"][owner]["2"] > method["group"][owner]["1"]
    assert report["methods"]["ino-sgd"]["variant"] == "sample"
    assert report["methods"]["ino-sgd-fair"]["variant"] == "fair"


def test_the_run_folder_is_complete(report, inosgd_once):
    folder = inosgd_once.folder / "run"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert json.loads((folder / "summary.json").read_text())["verdict"] == report["verdict"]
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["steps"] == 6
    assert config["seeds"] == [0, 1]
    run = folder / "ino-sgd" / "seed-1"
    plan = Plan.from_json((run / "plan.json").read_text())
    assert plan.steps == 6
    ledger = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in ledger if "step" in entry] == list(range(6))
    curve = json.loads((run / "metrics.json").read_text())
    assert curve[-1]["step"] == 6
    assert set(curve[-1]["owners"]) == {"digits 0-4", "digits 5-9"}
    assert not list(folder.parent.glob(".*partial"))


def test_the_same_seeds_give_the_same_numbers(report, inosgd):
    again = json.loads(inosgd(*QUICK, "--methods", "ino-sgd", "--json", "--out", "again").out)
    assert again["methods"]["ino-sgd"] == report["methods"]["ino-sgd"]


def test_processes_do_not_change_what_is_written(report, inosgd_once):
    quick = [2 if word == 1 else word for word in QUICK]
    parallel = json.loads(inosgd_once(*quick, "--methods", "ino-sgd", "--json", "--out", "parallel").out)
    assert parallel["methods"]["ino-sgd"] == report["methods"]["ino-sgd"]
    alone, together = (inosgd_once.folder / name / "ino-sgd" for name in ("run", "parallel"))
    files = sorted(path.relative_to(alone) for path in alone.rglob("*") if path.is_file())
    assert len(files) == 2 * 3
    for file in files:
        assert (together / file).read_bytes() == (alone / file).read_bytes(), file


def test_the_table_says_it_in_words(inosgd):
    outcome = inosgd(*QUICK, "--methods", "idp-sgd,ino-sgd", "--variant", "scale", "--accountant", "rdp")
    assert outcome.code == 0
    for words in (
        "idp-sgd",
        "worst owner",
        "ε spent",
        "all of them together",
        "serves its worst-off owner best",
    ):
        assert words in outcome.out
    assert "Run folder: runs/compare-digits-" in outcome.out


def test_other_studies(inosgd):
    outcome = inosgd(*QUICK, "--study", "breast-cancer", "--methods", "dp-sgd", "--json", "--out", "run")
    assert set(json.loads(outcome.out)["methods"]["dp-sgd"]["owners"]) == {"malignant", "benign"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--methods", "sgd"), "method='sgd': choose one of dp-sgd"),
        (("--methods", ","), "name at least one"),
        (("--variant", "best"), "variant='best': choose one of uniform"),
        (("--seeds", "0"), "seeds=0"),
        (("--steps", "-3"), "steps=-3"),
        (("--accountant", "guess"), "accountant='guess'"),
        (("--study", "cats"), "study='cats': choose one of digits"),
        (("--out", "."), "already exists"),
    ],
)
def test_bad_requests_end_in_one_error_and_leave_nothing(inosgd, tmp_path, arguments, words):
    outcome = inosgd("compare", "--steps", 2, "--seeds", 1, "--jobs", 1, *arguments)
    assert outcome.code == 2
    assert words in outcome.err.replace("\n", " ")
    assert outcome.out == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_failure_in_the_middle_leaves_nothing(inosgd, tmp_path, monkeypatch):
    from inosgd.compare import comparison
    from inosgd.errors import InosgdError

    def fail(*_, **__):
        raise InosgdError("the model caught fire")

    monkeypatch.setattr(comparison, "train_once", fail)
    for where in (("--out", "run"), ()):  # a folder of the user's, and the default one in runs/
        outcome = inosgd(*QUICK, *where)
        assert outcome.code == 2
        assert "caught fire" in outcome.err
        assert list(tmp_path.iterdir()) == []


def test_version(inosgd):
    import inosgd as package

    assert inosgd("--version").out.strip() == package.__version__
