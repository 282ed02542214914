"""Folders of every command become the same kind of material."""

from __future__ import annotations

import dataclasses

import pytest

from inosgd.compare.comparison import compare, open_store
from inosgd.compare.entrant import Entrant
from inosgd.errors import InvalidArgumentError
from inosgd.method import IDP_SGD
from inosgd.report import read_runs
from inosgd.report.material import MOST_MAIN_ROWS, MethodRow, main_labels
from inosgd.report.reading import read_run
from inosgd.report.verdicts import verdict_of
from inosgd.runs.folder import RunFolder
from inosgd.study.built_in import STUDIES


def test_a_comparison(compared):
    material = read_runs([compared])
    assert (material.kind, material.title) == ("compare", "digits")
    assert material.classes == tuple((str(digit), f"digits {'0-4' if digit < 5 else '5-9'}") for digit in range(10))
    assert [owner.name for owner in material.owners] == ["digits 0-4", "digits 5-9"]
    assert material.owners[0].examples > 700
    row = material.main_rows[1]
    assert (row.label, row.variant, row.seeds) == ("ino-sgd", "sample", (0, 1))
    for owner in material.owners:
        assert 0.9 * owner.epsilon < row.spent[owner.name] <= owner.epsilon
    assert row.terms["rates"]["digits 0-4"] < row.terms["rates"]["digits 5-9"]
    assert "Seeded" in material.unaccounted[0]


def test_extras_of_rows_that_are_there(with_extras):
    material = read_runs([with_extras])
    assert list(material.condition) == list(material.weights) == list(material.roc) == ["ino-sgd"]
    (with_extras / "condition.json").write_text("{")
    with pytest.raises(InvalidArgumentError, match="not JSON"):
        read_runs([with_extras])


def test_results_that_are_still_being_written(growing):
    material = read_runs([growing])
    assert material.kind == "compare"
    assert [len(row.results) for row in material.rows] == [2, 2, 2]
    assert "Every owner stayed within its budget" in material.verdict
    assert "ino-sgd changes" not in material.verdict  # two seeds are too few to say so
    assert material.rows[0].spent == {}  # groups that are not owners


@pytest.mark.parametrize("content", ["", "{}\n", "not json\nat all\n", '{"study": "x"}\n{"key": 1}\n'])
def test_results_that_cannot_be_read(tmp_path, content):
    (tmp_path / "results.jsonl").write_text(content)
    with pytest.raises(InvalidArgumentError, match=r"results\.jsonl"):
        read_runs([tmp_path])


def test_a_training_that_is_not_finished(trained):
    material = read_runs([trained])
    assert material.kind == "train"
    assert dict(material.facts)["steps"] == "8 of 12"
    assert [point.step for point in material.rows[0].results[0].curve] == [4, 8]
    ledger = RunFolder.open(trained).read_ledger()
    assert material.rows[0].spent == dict(zip(ledger.table.names, ledger.spent().tolist(), strict=True))
    assert material.verdict.startswith("After 8 steps")
    assert "Stopped before its plan was done" in material.unaccounted[-1]


def test_a_training_without_evaluations(trained):
    (trained / "metrics.jsonl").unlink()
    material = read_runs([trained])
    assert not material.evaluated
    assert material.verdict == "Nothing was measured on held-out examples; every owner stayed within its budget."


def test_several_runs_share_a_page_if_their_owners_are_the_same(compared, with_extras, growing):
    together = read_runs([compared, with_extras])
    assert [row.label for row in together.rows] == [
        f"{name} ({folder.name})" for folder in (compared, with_extras) for name in ("idp-sgd", "ino-sgd")
    ]
    with pytest.raises(InvalidArgumentError, match="make a report of each"):
        read_runs([compared, growing])


def test_folders_that_are_no_runs(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InvalidArgumentError, match="give a folder of inosgd compare"):
            read_runs([folder])
    with pytest.raises(InvalidArgumentError, match="at least one"):
        read_runs([])


def test_rows_can_be_chosen(compared):
    assert read_runs([compared], ["ino-sgd"]).main == ("ino-sgd",)
    with pytest.raises(InvalidArgumentError, match="'sgd' is not one of idp-sgd; ino-sgd"):
        read_runs([compared], ["sgd"])


def test_of_many_rows_the_papers_come_first():
    labels = ["tail 10%", "ino-sgd", "drop 10%", "dp-sgd", "ino-sgd fair 4, at most 2x", "idp-sgd", "x", "y"]
    rows = [MethodRow(label, "sample") for label in labels]
    assert main_labels(rows) == ("dp-sgd", "idp-sgd", "ino-sgd", "ino-sgd fair 4, at most 2x")
    unknown = [MethodRow(f"row {number}", "sample") for number in range(9)]
    assert len(main_labels(unknown)) == MOST_MAIN_ROWS


def test_a_verdict_says_so_if_a_budget_was_exceeded():
    from dataclasses import replace

    from tests.report.materials import material_of

    material = material_of()
    assert "very owner stayed within its budget" in verdict_of(material)
    row = replace(material.rows[0], spent={"owner 1": 0.500001})
    assert "A BUDGET WAS EXCEEDED" in verdict_of(replace(material, rows=(row, *material.rows[1:])))


def test_a_method_with_two_plans_is_two_rows(tmp_path):
    """Whichever was trained last: the study's own plan goes without saying."""
    study = STUDIES["digits"].changed({"steps": 2, "accountant": "rdp"})
    store = open_store(study, tmp_path / "run")
    for variant in ("scale", "sample", "both"):
        entered = Entrant("idp-sgd", dataclasses.replace(IDP_SGD, variant=variant))
        list(compare(study, [entered], [0], store, evaluations=1))
    rows = {row.label: row.variant for row in read_run(tmp_path / "run").rows}
    assert rows == {"idp-sgd (both)": "both", "idp-sgd (scale)": "scale", "idp-sgd": "sample"}
