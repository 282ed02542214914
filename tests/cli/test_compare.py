"""``inosgd compare`` from the outside."""

from __future__ import annotations

import json
import re
import shutil
import stat

import pytest

from inosgd.compare.results import read_results
from inosgd.method import METHODS
from tests.study.writers import table_text, write_study

QUICK = ("compare", "--steps", 6, "--seeds", 2, "--jobs", 1, "--no-report")


@pytest.fixture(scope="module")
def report(inosgd_once):
    outcome = inosgd_once(*QUICK, "--json", "--out", "run")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_json_has_what_every_owner_gets(report):
    assert list(report["summary"]) == list(METHODS)
    for label, row in report["summary"].items():
        assert 0 <= row["worst"]["mean"] <= row["overall"]["mean"] + 0.5
        for name in ("digits 0-4", "digits 5-9"):
            owner, group = row["owners"][name], report["group"][label][name]
            assert set(owner) >= {"mean", "sd", "loss"}
            assert 0 < owner["spent"] <= owner["epsilon"]
            assert group["1"] == pytest.approx(owner["spent"], rel=1e-3)
            assert group["10"] > group["2"] > group["1"]
    assert report["summary"]["ino-sgd"]["variant"] == "sample"
    assert report["summary"]["ino-sgd-fair"]["variant"] == "fair"
    assert "not to be published" in report["not_for_publication"]


def test_the_folder_is_complete_and_private(report, inosgd_once):
    folder = inosgd_once.folder / "run"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert json.loads((folder / "summary.json").read_text())["verdict"] == report["verdict"]
    common, results = read_results(folder / "results.jsonl")
    assert common.config["plan"]["steps"] == 6
    assert {(result.entrant["label"], result.seed) for result in results} == {
        (label, seed) for label in METHODS for seed in (0, 1)
    }
    assert all(result.final.step == 6 for result in results)


def test_the_same_seeds_give_the_same_numbers(report, inosgd):
    again = json.loads(inosgd(*QUICK, "--methods", "ino-sgd", "--json", "--out", "again").out)
    assert untimed(again) == untimed(report)


def test_answers_are_about_the_methods_that_were_asked_for(report, inosgd_once, inosgd, tmp_path):
    """The folder has others, which answers may not speak of, and whose tables are not shown."""
    shutil.copytree(inosgd_once.folder / "run", tmp_path / "run")
    outcome = inosgd(*QUICK, "--methods", "dp-sgd", "--json", "--out", "run")
    found = json.loads(outcome.out)
    said = json.dumps([each for each in found["answers"] if each["question"] != "What next?"])
    assert "dp-sgd" in said
    assert not [name for name in METHODS if name != "dp-sgd" and re.search(rf"(?<![\w-]){name}(?![\w-])", said)]


@pytest.mark.long  # `tests/compare` has the same without the program
def test_processes_do_not_change_what_is_found(report, inosgd_once):
    quick = [2 if word == 1 else word for word in QUICK]
    parallel = json.loads(inosgd_once(*quick, "--methods", "ino-sgd", "--json", "--out", "parallel").out)
    assert untimed(parallel) == untimed(report)


def untimed(report):
    """Everything about INO-SGD but how long it took."""
    return {**report["summary"]["ino-sgd"], "seconds_per_step": 0.0}


def test_the_table_says_it_in_words(inosgd):
    outcome = inosgd(*QUICK, "--methods", "idp-sgd,ino-sgd", "--variants", "scale", "--set", "accountant=rdp")
    assert outcome.code == 0
    for words in (
        "idp-sgd",
        "worst owner",
        "spent ε",
        "of all together",
        "for its worst owner",
    ):
        assert words in outcome.out
    assert "Results: runs/compare-digits-" in outcome.out


def test_other_studies(inosgd):
    outcome = inosgd("compare", "breast-cancer", *QUICK[1:], "--methods", "dp-sgd", "--json", "--out", "run")
    assert set(json.loads(outcome.out)["summary"]["dp-sgd"]["owners"]) == {"malignant", "benign"}


def test_a_study_file(inosgd, tmp_path):
    """One's own data, with what is special about them: every method trains the file's own model on its own split."""
    write_study(tmp_path, ("[training]\n", '[training]\naccountant = "rdp"\n'))
    quick = ("compare", "study.toml", "--steps", 4, "--seeds", 2, "--jobs", 1)
    outcome = inosgd(*quick, "--json", "--out", "run")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert list(found["summary"]) == list(METHODS)
    assert set(found["summary"]["dp-sgd"]["owners"]) == {"hospital_a", "hospital_b", "clinic"}
    assert "eyes of the holder" in " ".join(outcome.err.split())
    assert "study" in (tmp_path / "run" / "report.html").read_text()
    assert not traces(tmp_path / "run", table_text())
    table = (tmp_path / "cases.csv").read_text()
    (tmp_path / "cases.csv").write_text(table.replace("yes", "no", 1))
    changed = inosgd(*quick, "--out", "run")
    assert changed.code == 2
    assert "other settings or data" in changed.err.replace("\n", " ")


def traces(folder, text):
    """Rows of a table that are somewhere in a folder."""
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return [line for line in text.splitlines()[1:] if line.encode() in written]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--methods", "sgd"), "method='sgd': choose one of dp-sgd"),
        (("--methods", ","), "name at least one"),
        (("--variants", "best"), "variants='best': choose one of uniform"),
        (("--seeds", "0"), "seeds=0"),
        (("--steps", "-3"), "steps=-3"),
        (("--set", "accountant=guess"), "accountant='guess'"),
        (("cats",), "STUDY='cats': there is no such study file, nor a study of that name"),
    ],
)
def test_bad_requests_end_in_one_error_and_leave_nothing(inosgd, tmp_path, arguments, words):
    outcome = inosgd("compare", "--steps", 2, "--seeds", 1, "--jobs", 1, *arguments)
    assert outcome.code == 2
    assert words in outcome.err.replace("\n", " ")
    assert outcome.out == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_failure_in_the_middle_names_it_and_keeps_the_others(inosgd, tmp_path, monkeypatch):
    from inosgd.compare import comparison
    from inosgd.errors import InosgdError

    def fail(study, data, entrant, seed, **kept):
        if entrant.label == "ino-sgd":
            raise InosgdError("the model caught fire")
        return train_once(study, data, entrant, seed, **kept)

    train_once = comparison.train_once
    monkeypatch.setattr(comparison, "train_once", fail)
    outcome = inosgd(*QUICK, "--out", "run")
    assert outcome.code == 2
    assert "caught fire" in outcome.err
    assert len(read_results(tmp_path / "run" / "results.jsonl")[1]) == 10


def test_version(inosgd):
    import inosgd as package

    assert inosgd("--version").out.strip() == package.__version__
